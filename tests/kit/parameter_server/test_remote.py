"""A look-up in shards gives what one table gives."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.futures import Future
from torch.optim import SGD

from rolecall.kit.optimizers import OptimizerChoice
from rolecall.kit.parameter_server import Uniform, make_shards, sharded_embedding
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
    distinct, inverse = torch.unique(wanted, return_inverse=True)
    torch.testing.assert_close(look_up(distinct, inverse, count, ask), F.embedding(wanted, table))
    assert asked == list(range(count))


@pytest.mark.filterwarnings("ignore:You are using a Backend:UserWarning")  # of the Gloo groups that torch creates
@pytest.mark.usefixtures("gang", "context")
def test_tensors_are_sent_on_the_cpu_if_a_server_has_no_gpu() -> None:
    optimizer = OptimizerChoice(SGD, {"lr": 0.5})
    table = sharded_embedding("table", 5, dim=2, initializer=Uniform(1, 0.5), optimizer=optimizer, servers=[0, 0])
    shards = make_shards([table], trainers=1)
    for device in ("cpu", "cuda"):
        assert shards.transfer_device(torch.device(device)) == torch.device("cpu")
    assert [module.local_value().weight.shape for module in shards.modules("table")] == [(3, 2), (2, 2)]
