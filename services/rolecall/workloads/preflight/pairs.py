"""Who is measured with whom, and when; and who is no longer, because its calls stall. Pure."""

from collections import Counter
from collections.abc import Sequence

Pair = tuple[str, str]
_STALLS = 2
"""Stalls against so many others are a node's own: one may be the other's."""


def rounds(count: int) -> list[list[tuple[int, int]]]:
    """Every pair of `count` players once, in as few rounds as there can be; no one plays twice in a round.

    The circle method of round-robin tournaments (Kirkman 1847): one player stays, the others move on by one place.
    """
    seats = [*range(count), *([None] if count % 2 else [])]
    found: list[list[tuple[int, int]]] = []
    for _ in range(len(seats) - 1):
        opposite = zip(seats[: len(seats) // 2], reversed(seats[len(seats) // 2 :]), strict=True)
        found.append([(min(a, b), max(a, b)) for a, b in opposite if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return found


def blamed(stalls: Sequence[Pair]) -> dict[str, list[str]]:
    """The nodes whom the stalls are to be laid at, each with those against whom its calls stalled.

    The node with most stalls takes the blame for all of its own, and what is left is examined again: so a good node
    that met two bad ones is cleared as soon as these have met others.
    """
    guilty: dict[str, list[str]] = {}
    left: list[Pair] = list(stalls)
    while left:
        node, count = Counter(node for pair in left for node in pair).most_common(1)[0]
        if count < _STALLS:
            break
        guilty[node] = [one if other == node else other for one, other in left if node in {one, other}]
        left = [pair for pair in left if node not in pair]
    return guilty
