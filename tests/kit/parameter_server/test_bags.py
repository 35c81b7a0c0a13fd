"""Bags that are pooled on servers, compared with torch's `EmbeddingBag` of the whole table."""

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.measured import increases, measured
from torch import Tensor, nn
from torch.distributed.nn.api.remote_module import RemoteModule
from torch.futures import Future
from torch.optim import SGD

from rolecall.kit.optimizers import OptimizerChoice
from rolecall.kit.parameter_server import (
    EmbeddingBagShard,
    RemoteEmbeddingBag,
    ShardedEmbeddingBag,
    ShardSpec,
    Uniform,
    make_shards,
    require_bags,
    sharded_embedding,
)
from rolecall.kit.parameter_server.bags import Pooling, pool_remotely
from rolecall.kit.parameter_server.lookup import distinct_rows, request_rows
from rolecall.kit.parameter_server.rows import mean_rows
from rolecall.spec import metric

# Torch warns of the Gloo groups that it creates itself.
pytestmark = pytest.mark.filterwarnings("ignore:You are using a Backend:UserWarning")
IDS, OFFSETS = torch.tensor([3, 3, 0, 4, 1]), torch.tensor([0, 2, 2, 4])
UNIFORM, F64 = Uniform(0, 1.0), torch.float64


@settings(deadline=None, max_examples=50)  # torch's first call takes its time
@given(
    count=st.integers(1, 4),
    pooling=st.sampled_from(["sum", "mean"]),
    bags=st.lists(st.lists(st.integers(0, 8), max_size=4), max_size=6),
)
def test_shards_give_the_whole_tables_bags(count: int, pooling: Pooling, bags: list[list[int]]) -> None:
    table = torch.randn(9, 3, dtype=F64)
    asked: list[int] = []

    def ask(shard: int, rows: Tensor, offsets: Tensor) -> Future[Tensor]:
        asked.append(shard)
        assert len(rows) > 0 or len(offsets) == 0, "bags without rows of a shard are not sent to it"
        future: Future[Tensor] = Future()
        future.set_result(F.embedding_bag(rows, table[shard::count], offsets, mode=pooling))
        return future

    ids = torch.tensor([id for bag in bags for id in bag], dtype=torch.int64)
    offsets = torch.tensor([len(bag) for bag in bags], dtype=torch.int64).cumsum(0).roll(1)
    offsets[:1] = 0
    found = pool_remotely(ids, offsets, count, ask, pooling)
    torch.testing.assert_close(found, F.embedding_bag(ids, table, offsets, mode=pooling), rtol=0, atol=1e-12)
    assert asked == list(range(count))


def test_the_share_of_distinct_ids_is_that_of_look_ups_by_row() -> None:
    """Servers that pool get every id, so that the share says nothing."""

    def answered(*_: object) -> Future[Tensor]:
        future: Future[Tensor] = Future()
        future.set_result(torch.zeros(3, 3))
        return future

    counted = metric.LOOK_UP_IDS, metric.LOOK_UP_SENT
    before = measured(*counted)
    pool_remotely(torch.tensor([2, 2, 2]), torch.tensor([0, 1, 2]), 1, answered)
    assert increases(before, *counted) == [0, 0]
    request_rows(distinct_rows(IDS, 2), answered)
    assert increases(before, *counted) == [5, 4]


def gradient(forward: nn.Module, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The pooled bags and the dense gradient of a loss of them at `weight`."""
    with dist_autograd.context() as context_id:
        pooled = forward(IDS, OFFSETS)
        dist_autograd.backward(context_id, [pooled.square().sum()])
        return pooled.detach(), dist_autograd.get_gradients(context_id)[weight].to_dense()


def expected(weight: Tensor, pooling: Pooling) -> tuple[Tensor, Tensor]:
    whole = weight.detach().clone().requires_grad_()
    pooled = F.embedding_bag(IDS, whole, OFFSETS, mode=pooling)
    (found,) = torch.autograd.grad(pooled.square().sum(), whole)
    return pooled.detach(), found


@pytest.mark.usefixtures("gang", "context")
def test_servers_add_up_bags() -> None:
    optimizer = OptimizerChoice(SGD, {"lr": 0.1})
    table = sharded_embedding("table", 5, dim=3, initializer=UNIFORM, optimizer=optimizer, servers=[0], dtype=F64)
    (shard,) = make_shards([table], 1).of("table")
    weight = shard.shard.local_value()._module.get_parameter("weight")
    pooled = ShardedEmbeddingBag([shard])(IDS, OFFSETS)
    pooled.square().sum().backward()
    total = mean_rows(shard.gradients, 1)
    found = torch.zeros_like(weight).index_copy_(0, total.rows, total.values)
    torch.testing.assert_close((pooled.detach(), found), expected(weight, "sum"))


@pytest.mark.usefixtures("gang", "context")
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_remote_modules_pool_bags(pooling: Pooling, sparse: bool) -> None:
    arguments = {"dim": 3, "initializer": UNIFORM, "dtype": F64, "mode": pooling, "sparse": sparse}
    module = RemoteModule("parameter-server-0/cpu", EmbeddingBagShard, (ShardSpec(0, 1, 5),), arguments)
    embedding = RemoteEmbeddingBag([module], pooling)
    (reference,) = embedding.remote_parameters()
    weight = reference.local_value()
    torch.testing.assert_close(gradient(embedding, weight), expected(weight, pooling))


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([1, 2], "offsets begin at 1; the first bag must begin at 0, so that no index is lost"),
        ([0, 3, 2], r"offsets\[1\] is 3, but offsets\[2\] is 2; offsets must ascend"),
        ([0, 6], r"offsets\[1\] is 6, but the 5 indices end; offsets must ascend, up to the number of indices"),
        ([], "offsets begin at 5; the first bag must begin at 0"),
        ([[0]], r"indices and offsets have the shapes \[5\] and \[1, 1\]; both must have one dimension"),
    ],
)
def test_offsets_that_are_no_bags(offsets: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        require_bags(IDS, torch.tensor(offsets, dtype=torch.int64))
    require_bags(IDS, OFFSETS)
    require_bags(torch.empty(0), torch.empty(0))
