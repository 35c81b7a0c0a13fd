"""Which parameter servers hold what."""

from dataclasses import dataclass

from rolecall.workloads.rnn_lm.vocabulary import Part


@dataclass(frozen=True, slots=True)
class Holding:
    """One shard and the parameter server that has it."""

    server: int
    table: str
    """`embedding` or `decoder`."""
    part: Part


def place(servers: int, vocabulary: int) -> list[Holding]:
    """One server holds both tables; of several the first third holds the embedding, the others the decoder.

    The decoder gets more servers because each of its rows computes for every token, an embedding's only for its own.
    """
    if servers == 1:
        return [Holding(0, table, Part(0, 1, vocabulary)) for table in ("embedding", "decoder")]
    first_decoder = max(1, servers // 3)
    return [
        *(_holding(server, "embedding", 0, first_decoder, vocabulary) for server in range(first_decoder)),
        *(_holding(server, "decoder", first_decoder, servers, vocabulary) for server in range(first_decoder, servers)),
    ]


def _holding(server: int, table: str, first: int, end: int, vocabulary: int) -> Holding:
    return Holding(server, table, Part(server - first, end - first, vocabulary))
