# pyright: standard, reportPrivateImportUsage=false
"""Vectors that trainers get from shards, and gradients that they send: where they are, and their precision."""

import time

import pytest
import torch
from torch import Tensor
from torch.distributed import rpc
from torch.optim import SGD

from rolecall.kit.optimizers import OptimizerChoice
from rolecall.kit.parameter_server import ShardedEmbedding, Uniform, make_shards, sharded_embedding
from rolecall.kit.parameter_server.shard import Shard


@pytest.mark.filterwarnings("ignore:You are using a Backend:UserWarning")  # of the Gloo groups that torch creates
@pytest.mark.usefixtures("gang", "context")
def test_tensors_are_sent_on_the_cpu_if_a_server_has_no_gpu() -> None:
    optimizer = OptimizerChoice(SGD, {"lr": 0.5})
    table = sharded_embedding("table", 5, dim=2, initializer=Uniform(1, 0.5), optimizer=optimizer, servers=[0, 0])
    shards = make_shards([table], trainers=1)
    for device in ("cpu", "cuda"):
        assert shards.transfer_device(torch.device(device)) == torch.device("cpu")
    assert [module.local_value().weight.shape for module in shards.modules("table")] == [(3, 2), (2, 2)]


@pytest.mark.filterwarnings("ignore:You are using a Backend:UserWarning")
@pytest.mark.usefixtures("gang", "context")
def test_vectors_and_gradients_are_rounded_for_the_network_alone() -> None:
    optimizer = OptimizerChoice(SGD, {"lr": 1.0})
    table = sharded_embedding(
        "table", 4, dim=3, initializer=Uniform(1, 0.5), optimizer=optimizer, servers=[0], transfer_dtype=torch.bfloat16
    )
    shards = make_shards([table], trainers=1)
    embedding, weight = ShardedEmbedding(shards.of("table")), shards.modules("table")[0].local_value().weight
    before, gradient = weight.detach().clone(), torch.tensor([[0.1, 0.7, 1.003]])
    with torch.no_grad():
        assert embedding(torch.tensor([3])).dtype == torch.float32
    vectors = embedding(torch.tensor([2]))
    (vectors * gradient).sum().backward()
    torch.futures.wait_all(shards.apply(None, 0, 0, 1.0))
    torch.testing.assert_close(vectors, before[[2]].bfloat16().float(), rtol=0, atol=0)
    assert not torch.equal(vectors, before[[2]])
    torch.testing.assert_close(weight[2:3], before[2:3] - gradient.bfloat16().float(), rtol=0, atol=0)
    torch.testing.assert_close(weight[:2], before[:2], rtol=0, atol=0)


class Slow:
    """The initial values, the parts of a checkpoint and the rows of a large table."""

    def __call__(self, _block: int, values: Tensor) -> None:
        time.sleep(0.4)
        values.zero_()


@pytest.mark.filterwarnings("ignore:You are using a Backend:UserWarning")
@pytest.mark.usefixtures("gang", "context")
def test_calls_that_take_as_long_as_a_table_is_large_have_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def save(_shard: Shard, _step: int) -> str:
        time.sleep(0.4)
        return "saved"

    optimizer = OptimizerChoice(SGD, {"lr": 1.0})
    table = sharded_embedding("table", 4, dim=3, initializer=Slow(), optimizer=optimizer, servers=[0])
    rpc._set_rpc_timeout(0.2)
    try:
        shards = make_shards([table], trainers=1)
        shards.wait()
        monkeypatch.setattr(Shard, "save", save)
        assert torch.futures.wait_all(shards.save(1)) == ["saved"]
        with pytest.raises(RuntimeError, match="RPC ran for more than set timeout"):
            shards.of("table")[0].call(Shard.save, 1).wait()
    finally:
        rpc._set_rpc_timeout(60.0)
