# pyright: standard, reportPrivateImportUsage=false
"""The choice of a process group's backend, and the group for tensors on GPUs that Gloo can't send."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest
import torch
import torch.distributed as dist

from rolecall.runtime.backends import HOST, HostGroup, choose_backend, shared_gpus
from rolecall.spec.plan import GangPlan, WorkerPlan
from rolecall.spec.role import Role
from rolecall.testing.gang import processes


def workers(*gpus: str | None) -> tuple[WorkerPlan, ...]:
    """A trainer for each GPU, or for None without one."""
    return tuple(
        WorkerPlan(rank=rank, role=Role.TRAINER, role_rank=rank, node="n", threads=1, gpu=gpu)
        for rank, gpu in enumerate(gpus)
    )


@pytest.mark.parametrize(
    ("gpus", "backend"),
    [
        ((None, None), "cpu:gloo"),
        (("GPU-a",), "cpu:gloo,cuda:nccl"),
        (("GPU-a", "GPU-b"), "cpu:gloo,cuda:nccl"),
        (("GPU-a", "GPU-b", "GPU-a"), HOST),
        (("GPU-a", None), HOST),
        (("MIG-a",), "cpu:gloo,cuda:nccl"),
        (("MIG-a", "MIG-b"), HOST),
    ],
)
def test_nccl_connects_only_workers_with_a_whole_gpu_each(gpus: tuple[str | None, ...], backend: str) -> None:
    assert choose_backend(workers(*gpus)) == backend


def test_the_ranks_on_a_shared_gpu_are_listed() -> None:
    assert shared_gpus(GangPlan(workers=workers("GPU-a", "GPU-b", None, "GPU-a"))) == {"GPU-a": [0, 3]}


def exit_codes_of_two(member: Callable[[int, str], None], folder: Path) -> list[int | None]:
    """Run both members; None is the exit code of one that hangs."""
    members = [processes.Process(target=member, args=(rank, str(folder / "store"))) for rank in range(2)]
    for process in members:
        process.start()
    for process in members:
        process.join(120)
    exit_codes = [process.exitcode for process in members]
    for process in members:
        process.kill()
    return exit_codes


def exchange(rank: int, store: str) -> None:
    """Send, receive, reduce and gather as one of two members."""
    dist.init_process_group(
        HOST, store=dist.FileStore(store, 2), rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    mine, other = torch.arange(6.0).view(2, 3).t() + rank, torch.zeros(3, 2, requires_grad=True)
    sent, received = dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, other, 1 - rank)
    works = dist.batch_isend_irecv([sent, received])
    mine.zero_()  # What was sent is a copy.
    for work in works:
        work.wait()
    assert torch.equal(other, torch.arange(6.0).view(2, 3).t() + 1 - rank)
    pair = dist.new_group([0, 1])
    assert isinstance(pair, HostGroup)
    summed = torch.full((2,), rank + 1.0)
    dist.all_reduce(summed, group=pair)
    assert summed.tolist() == [3.0, 3.0]
    names: list[object] = [None, None]
    dist.all_gather_object(names, f"rank {rank}")
    assert names == ["rank 0", "rank 1"]
    module = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    module(torch.full((4, 2), float(rank))).sum().backward()
    assert [cast(torch.Tensor, one.grad).tolist() for one in module.parameters()] == [[[2.0, 2.0]], [4.0]]
    dist.destroy_process_group()


def test_a_group_through_the_host_has_its_own_form_of_each_operation() -> None:
    """A method of a later torch that is missing would hold the interpreter's lock while it waits for Gloo."""
    operations = {
        name
        for name, method in vars(dist.ProcessGroup).items()
        if "Work" in (method.__doc__ or "").partition("->")[2].partition("\n")[0]
    }
    assert {"allreduce", "send", "recv_anysource"} <= operations
    assert operations - vars(HostGroup).keys() <= {
        "_end_coalescing",  # Gloo coalesces nothing.
        "reconfigure",  # Gangs have a fixed size.
    }


@pytest.mark.slow
def test_a_group_through_the_host_sends_copies_and_reduces_as_any_other(tmp_path: Path) -> None:
    """On CPU tensors, which take the same path as those on GPUs."""
    assert exit_codes_of_two(exchange, tmp_path) == [0, 0]


def repeat_collectives(rank: int, store: str) -> None:
    """Run each kind of collective often, as one of two members."""
    dist.init_process_group(
        HOST, store=dist.FileStore(store, 2), rank=rank, world_size=2, timeout=timedelta(seconds=20)
    )
    for _ in range(100):
        pair = [torch.zeros(2), torch.zeros(2)]
        dist.barrier()
        dist.broadcast(torch.ones(2), src=0)
        dist.all_reduce(torch.ones(2))
        dist.reduce(torch.ones(2), dst=0)
        dist.all_gather(pair, torch.ones(2))
        dist.all_gather_into_tensor(torch.zeros(4), torch.ones(2))
        dist.gather(torch.ones(2), pair if rank == 0 else None)
        dist.scatter(torch.ones(2), pair if rank == 0 else None)
        dist.reduce_scatter(torch.zeros(2), pair)
        dist.reduce_scatter_tensor(torch.zeros(2), torch.ones(4))
        dist.all_to_all_single(torch.zeros(2), torch.ones(2))
        peer = 1 - rank
        for work in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, torch.ones(2), peer), dist.P2POp(dist.irecv, torch.zeros(2), peer)]
        ):
            work.wait()
    dist.destroy_process_group()


@pytest.mark.slow
def test_a_group_through_the_host_survives_many_collectives(tmp_path: Path) -> None:
    """A call that holds the interpreter's lock while it waits for Gloo would stop both members soon."""
    assert exit_codes_of_two(repeat_collectives, tmp_path) == [0, 0]
