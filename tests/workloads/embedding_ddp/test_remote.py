# pyright: standard, reportPrivateImportUsage=false
"""The model over both sides of RPC, and where bags are pooled."""

import warnings

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed import rpc
from torch.distributed.nn.api.remote_module import RemoteModule
from torch.distributed.optim import DistributedOptimizer
from torch.optim import SGD

from rolecall.workloads.embedding_ddp.remote import HybridModel, sums_are_smaller

# Torch warns of the Gloo groups that it creates itself.
pytestmark = pytest.mark.filterwarnings("ignore:You are using a Backend:UserWarning")
CPU = torch.device("cpu")
INDICES, OFFSETS, LABELS = torch.tensor([4, 1, 4, 99, 0]), torch.tensor([0, 3, 3]), torch.tensor([7, 0, 3])


class Doubled(HybridModel):
    """A subclass with a forward of its own."""

    def forward(self, indices: Tensor, offsets: Tensor, *others: Tensor) -> Tensor:
        return 2 * super().forward(indices, offsets, *others)


def table() -> RemoteModule:
    return RemoteModule("parameter-server-0/cpu", nn.EmbeddingBag, args=(100, 16), kwargs={"mode": "sum"})


@pytest.mark.slow
@pytest.mark.usefixtures("gang", "context")
def test_the_tutorials_own_program() -> None:
    """Its module, model, loss and optimizer, and a subclass, against one process."""
    remote_emb_module, fc = table(), nn.Linear(16, 8)
    weight = remote_emb_module.get_module_rref().local_value().weight
    whole, alone = nn.Parameter(weight.detach().clone()), nn.Linear(16, 8)
    alone.load_state_dict(fc.state_dict())
    model = Doubled(remote_emb_module, fc, CPU)
    references = [*remote_emb_module.remote_parameters(), *map(rpc.RRef, model.fc.parameters())]
    with warnings.catch_warnings(record=True):  # Some versions of torch warn of TorchScript, whatever the filters.
        opt = DistributedOptimizer(SGD, references, lr=0.05)
    local = SGD([whole, *alone.parameters()], lr=0.05)
    for _ in range(3):
        with dist_autograd.context() as context_id:
            dist_autograd.backward(context_id, [F.cross_entropy(model(INDICES, OFFSETS), LABELS)])
            opt.step(context_id)
        local.zero_grad()
        F.cross_entropy(2 * alone(F.embedding_bag(INDICES, whole, OFFSETS, mode="sum")), LABELS).backward()
        local.step()
    torch.testing.assert_close(weight, whole)
    torch.testing.assert_close(fc.state_dict(), alone.state_dict())


@pytest.mark.usefixtures("gang", "context")
def test_offsets_are_checked_before_anything_is_sent() -> None:
    model = HybridModel(table(), nn.Linear(16, 8), CPU)
    with pytest.raises(ValueError, match=r"offsets\[1\] is 4, but offsets\[2\] is 3; offsets must ascend"):
        model(INDICES, torch.tensor([0, 4, 3]))
    rows = HybridModel(table(), nn.Linear(32, 8), CPU, width=2)
    with pytest.raises(ValueError, match="3 bags don't fill rows of 2 bags"):
        rows(INDICES, OFFSETS)


@pytest.mark.parametrize(
    ("ids", "bags", "servers", "smaller"),
    [
        (range(1000), 1, 1, True),  # one sum, not a thousand vectors
        (range(1000), 1, 4, True),  # a sum of each server
        ([0, 1] * 500, 2, 1, False),  # two vectors, or two sums and a thousand ids
        (range(8), 8, 1, False),  # one id in each bag
        (range(12), 8, 1, True),
        (range(12), 8, 2, False),  # some bags have ids of both servers
    ],
)
def test_whatever_sends_fewer_bytes_is_chosen(ids: range | list[int], bags: int, servers: int, smaller: bool) -> None:
    offsets = torch.arange(bags) * len(ids) // bags
    found = sums_are_smaller(torch.tensor(list(ids)), offsets, len(set(ids)), servers=servers, vector_bytes=64)
    assert found == smaller


@pytest.mark.parametrize(("ids", "smaller"), [(1000, True), (1, False), (0, False)])
def test_empty_bags_send_nothing(ids: int, smaller: bool) -> None:
    offsets = torch.tensor([0] + [ids] * 1999)
    assert sums_are_smaller(torch.arange(ids), offsets, ids, servers=2, vector_bytes=64) == smaller
