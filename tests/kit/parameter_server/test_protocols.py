# pyright: standard, reportPrivateImportUsage=false
"""Update protocols compared with one local optimizer."""

import warnings
from functools import partial
from typing import Literal

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.optim import SGD

from rolecall.kit.optimizers import OptimizerChoice
from rolecall.kit.parameter_server import (
    DecoderShard,
    OverlappedUpdates,
    RemoteDecoder,
    ServerOptimizers,
    ShardedEmbedding,
    ShardedModule,
    Shards,
    TutorialProtocol,
    Uniform,
    UpdateProtocol,
    make_shards,
    parameter_references,
    sharded_embedding,
)

# Torch warns of the Gloo groups that it creates itself.
pytestmark = pytest.mark.filterwarnings("ignore:You are using a Backend:UserWarning")
CHOICE = OptimizerChoice(SGD, {"lr": 0.5})
IDS, STEPS = torch.tensor([0, 2, 2, 3]), 3


class Reference:
    """The same model in one process: a table and a linear layer."""

    def __init__(self, shards: Shards) -> None:
        self.table = nn.Parameter(torch.cat(list(shards.blocks("table", "weight"))))
        self.local = linear()

    def step(self, max_norm: float | None) -> None:
        parameters = [self.table, *self.local.parameters()]
        optimizer = SGD(parameters, lr=0.5)
        optimizer.zero_grad()
        self.local(self.table[IDS]).square().sum().backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(parameters, max_norm)
        optimizer.step()


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def shards_of() -> Shards:
    table = sharded_embedding(
        "table", 4, dim=3, initializer=Uniform(0, 1.0), optimizer=CHOICE, servers=[0], sparse=False
    )
    return make_shards([table], 1)


def step(shards: Shards, local: nn.Module, protocol: UpdateProtocol, number: int) -> None:
    with dist_autograd.context() as context_id:
        loss: Tensor = local(ShardedEmbedding(shards.of("table"))(IDS)).square().sum()
        dist_autograd.backward(context_id, [loss])
        torch.futures.wait_all(list(protocol.apply(context_id, number, 1.0)))


@pytest.mark.usefixtures("gang", "context")
@pytest.mark.parametrize("max_norm", [None, 0.1])
def test_server_optimizers_equal_one_optimizer(max_norm: float | None) -> None:
    shards, local = shards_of(), linear()
    reference = Reference(shards)
    protocol = ServerOptimizers(shards, 0, CHOICE.build(local.parameters()), max_norm=max_norm)
    for number in range(STEPS):
        step(shards, local, protocol, number)
        reference.step(max_norm)
    torch.testing.assert_close(torch.cat(list(shards.blocks("table", "weight"))), reference.table.detach())
    torch.testing.assert_close(local.state_dict(), reference.local.state_dict())


@pytest.mark.usefixtures("gang", "context")
@pytest.mark.parametrize("loss_at", ["server", "trainer"])
@pytest.mark.parametrize("max_norm", [None, 0.1])
def test_overlapped_updates_equal_one_optimizer(max_norm: float | None, loss_at: Literal["server", "trainer"]) -> None:
    make_decoder = partial(DecoderShard, width=2, initializer=Uniform(1, 1.0), precision="float32")
    table = sharded_embedding("table", 4, dim=3, initializer=Uniform(0, 1.0), optimizer=CHOICE, servers=[0])
    shards, local = make_shards([table, ShardedModule("decoder", 5, make_decoder, CHOICE, [0])], 1), linear()
    reference, classes, targets = Reference(shards), nn.Linear(2, 5), torch.tensor([4, 0, 0, 3])
    classes.load_state_dict({name: torch.cat(list(shards.blocks("decoder", name))) for name in ("weight", "bias")})
    early, late = (Shards(shards.of(name)) for name in ("decoder", "table"))
    updates = OverlappedUpdates(early, late, 0, CHOICE.build(local.parameters()), max_norm=max_norm)
    decoder = RemoteDecoder(early.of("decoder"), torch.device("cpu"), loss_at, 0, updates.send)
    embedding = ShardedEmbedding(late.of("table"))
    weights = [reference.table, *reference.local.parameters(), *classes.parameters()]
    for number in range(STEPS):
        updates.begin(number, 1.0)
        local.zero_grad()
        losses = decoder.losses(local(embedding(IDS)), targets)
        losses.sum().backward()
        torch.futures.wait_all(updates.apply(None, number, 1.0))
        optimizer = SGD(weights, lr=0.5)
        optimizer.zero_grad()
        expected = F.cross_entropy(classes(reference.local(reference.table[IDS])), targets, reduction="none")
        torch.testing.assert_close(losses, expected)
        expected.sum().backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(weights, max_norm)
        optimizer.step()
    for name, weight in classes.named_parameters():
        torch.testing.assert_close(torch.cat(list(shards.blocks("decoder", name))), weight.detach())
    torch.testing.assert_close(torch.cat(list(shards.blocks("table", "weight"))), reference.table.detach())
    torch.testing.assert_close(local.state_dict(), reference.local.state_dict())


@pytest.mark.usefixtures("gang", "context")
def test_the_local_optimizers_state_is_restored() -> None:
    shards = shards_of()
    local, other = linear(), linear()
    momentum = OptimizerChoice(SGD, {"lr": 0.5, "momentum": 0.9})
    trained, restored = (ServerOptimizers(shards, 0, momentum.build(one.parameters())) for one in (local, other))
    step(shards, local, trained, 0)
    state = trained.state()
    assert state.keys() == {"optimizer/0/momentum_buffer", "optimizer/1/momentum_buffer"}
    restored.restore(state)
    torch.testing.assert_close(restored.state(), state)
    assert ServerOptimizers(shards, 0).state() == {}


@pytest.mark.usefixtures("gang", "context")
def test_the_tutorials_protocol_equals_one_optimizer() -> None:
    shards, local = shards_of(), linear()
    reference = Reference(shards)
    (table,) = shards.modules("table")
    with warnings.catch_warnings(record=True):  # Some versions of torch warn of TorchScript, whatever the filters.
        weights = [one for module in (table.local_value(), local) for one in parameter_references(module)]
        protocol = TutorialProtocol(weights, CHOICE, in_step=True)
    (shard,) = shards.of("table")
    for number in range(STEPS):
        with dist_autograd.context() as context_id:
            dist_autograd.backward(context_id, [local(shard.compute("forward", IDS).wait()).square().sum()])
            assert protocol.apply(context_id, number, 1.0) == ()
        reference.step(None)
    torch.testing.assert_close(torch.cat(list(shards.blocks("table", "weight"))), reference.table.detach())
    torch.testing.assert_close(local.state_dict(), reference.local.state_dict())
    assert protocol.state() == {}
