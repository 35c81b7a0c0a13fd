"""A look-up in shards gives what one table gives."""

import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.futures import Future

from rolecall.kit.parameter_server.remote import look_up


@settings(deadline=None)  # torch's first call takes its time
@given(count=st.integers(1, 5), ids=st.lists(st.integers(0, 16), max_size=40))
def test_shards_give_the_whole_tables_vectors(count: int, ids: list[int]) -> None:
    table = torch.randn(17, 3)
    asked: list[int] = []

    def ask(shard: int, rows: torch.Tensor) -> Future[torch.Tensor]:
        asked.append(shard)
        assert len(set(rows.tolist())) == len(rows), "each distinct id crosses the wire once"
        future: Future[torch.Tensor] = Future()
        future.set_result(table[shard::count][rows])
        return future

    wanted = torch.tensor(ids, dtype=torch.int64).reshape(-1, 1)
    torch.testing.assert_close(look_up(wanted, count, ask), F.embedding(wanted, table))
    assert asked == list(range(count))
