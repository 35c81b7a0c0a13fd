# pyright: standard, reportPrivateImportUsage=false
"""Each trainer sends to the other by RPC, with gradients, and by the process group; both check what arrives."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
from tests.gpu.exchange import Params
from torch import Tensor
from torch.distributed import rpc

from rolecall.kit.grid import Grid, make_grid
from rolecall.kit.worker import WorkerContext, current, worker_name


def run(context: WorkerContext[Params]) -> None:
    """Exchange tensors, and report where they were."""
    peer = worker_name(context.role, 1 - context.role_rank)
    _call(peer, context.device, context.params.sizes)
    _differentiate(peer, context.device)
    for device in dict.fromkeys((context.device, torch.device("cpu"))):
        _gather(context.role_rank, device)
    _send(make_grid(1, context.device), context.role_rank)
    context.report(1, loss=0.0)
    if context.role_rank == 0:
        context.report.result({"on_gpu": float(context.device.type == "cuda")})


def double(x: Tensor, weight: float) -> Tensor:
    """Called by the other trainer: 2 · weight · x, computed on this worker's device."""
    assert x.device == current().device, f"the tensor arrived on {x.device}"
    return x * 2 * weight


def _call(peer: str, device: torch.device, sizes: Sequence[int]) -> None:
    """Tensors in arguments and results; several at once, so that their streams overlap."""
    given = [torch.rand(size, device=device, dtype=torch.float64) for size in sizes] * 3
    answers = [rpc.rpc_async(peer, double, args=(x, 3.0)) for x in given]
    for x, answer in zip(given, answers, strict=True):
        result = answer.wait()
        assert result.device == device, f"the result arrived on {result.device}"
        torch.testing.assert_close(result, x * 6)


def _differentiate(peer: str, device: torch.device) -> None:
    """A gradient through the other worker, and back to the device that the tensor had."""
    x = torch.rand(1000, device=device, dtype=torch.float64, requires_grad=True)
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [rpc.rpc_sync(peer, double, args=(x, 2.0)).square().sum()])
        gradient = dist_autograd.get_gradients(context_id)[x]
    assert gradient.device == device, f"the gradient arrived on {gradient.device}"
    torch.testing.assert_close(gradient, 32 * x.detach())


def _gather(rank: int, device: torch.device) -> None:
    """Collectives that workloads and torchmetrics use."""
    mine = torch.full((1000,), rank + 1.0, device=device, dtype=torch.float64)
    total = mine.clone()
    dist.all_reduce(total)
    assert bool((total == 3).all())
    gathered = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(gathered, mine)
    assert [float(one[0]) for one in gathered] == [1.0, 2.0]
    number = torch.tensor(7 * (1 - rank), device=device)
    dist.broadcast(number, src=0)
    assert int(number) == 7
    objects: list[object] = [None, None]
    dist.all_gather_object(objects, rank)
    assert objects == [0, 1]
    dist.barrier()


def _send(grid: Grid, rank: int) -> None:
    """From rank to rank in the group of a pipeline, as evaluation does, and in both directions at once, as training."""
    tensor = torch.full((1000,), rank + 5.0, device=grid.device)
    received = torch.zeros_like(tensor)
    if rank == 0:
        dist.send(tensor, group=grid.pipeline_group, group_dst=1)
    else:
        dist.recv(received, group=grid.pipeline_group, group_src=0)
        assert bool((received == 5).all())
    peer = 1 - rank
    operations = [
        dist.P2POp(dist.isend, tensor, group=grid.pipeline_group, group_peer=peer),
        dist.P2POp(dist.irecv, received, group=grid.pipeline_group, group_peer=peer),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert bool((received == peer + 5).all())
