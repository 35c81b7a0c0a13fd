"""The backend of a gang's process group, which all its members choose from the same plan.

NCCL connects workers with a GPU each, but neither two workers on one GPU or on slices of one, nor a worker with a GPU
and one without. For those, Gloo reduces, gathers and broadcasts tensors on GPUs through the host's memory. It can't
send and receive them, so `HostGroup` copies them.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from rolecall.spec.plan import GangPlan, WorkerPlan

HOST = "rolecall-host"
"""The backend whose groups are a `HostGroup`."""
COLLECTIVE_TIMEOUT = timedelta(days=1)
"""Only for deadlocks: a dead peer closes its connections, and nodes detect stopped ones. A worker can wait for another
one that encodes its input, stores a checkpoint or writes an export, which takes hours for large ones."""


def choose_backend(members: Sequence[WorkerPlan]) -> str:
    """The backend of a process group of these workers."""
    gpus = [worker.gpu for worker in members if worker.gpu is not None]
    if not gpus:
        return "cpu:gloo"
    one_each = len(set(gpus)) == len(members)
    # The plan does not say which slices are of one GPU.
    slices = len(members) > 1 and any(gpu.startswith("MIG-") for gpu in gpus)
    return "cpu:gloo,cuda:nccl" if one_each and not slices else HOST


def shared_gpus(gang: GangPlan) -> dict[str, list[int]]:
    """The ranks on each GPU that several workers use."""
    users = Counter(worker.gpu for worker in gang.workers if worker.gpu is not None)
    return {
        gpu: [worker.rank for worker in gang.workers if worker.gpu == gpu] for gpu, count in users.items() if count > 1
    }


_DELEGATED = (
    *("broadcast", "reduce", "allreduce", "allreduce_coalesced", "barrier", "monitored_barrier"),
    *("gather", "gather_into_tensor", "scatter", "recv_anysource"),
    *("abort", "shutdown", "get_group_store"),
    *("allgather", "allgather_coalesced", "_allgather_base", "allgather_into_tensor_coalesced"),
    *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced", "alltoall", "alltoall_base"),
    # Their names since torch 2.14.
    *("all_gather_single", "all_gather_single_coalesced", "reduce_scatter_single", "reduce_scatter_single_coalesced"),
    *("all_to_all_single", "gather_single"),
)


class HostGroup(dist.ProcessGroup):
    """A Gloo process group that also sends and receives tensors on GPUs, as copies in the host's memory.

    Its methods call those of a group that is not a Python class. For a subclass in Python, torch takes the lock of the
    interpreter to look for an override, and holds it while it calls the method of the base class. That waits for a
    mutex of Gloo, whose thread can hold it while it waits for the interpreter's lock to release a tensor.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        # In torch 2.11, a class in Python can't pass the store. The stub has only the form with the store.
        super().__init__(rank, size)  # pyright: ignore[reportCallIssue]
        self.gloo = dist.ProcessGroup(store, rank, size)
        backend = dist.ProcessGroupGloo(store, rank, size, timeout)
        kind = dist.ProcessGroup.BackendType.GLOO
        for group in (self, self.gloo):
            group._set_default_backend(kind)
            for device in ("cpu", "cuda"):
                group._register_backend(torch.device(device), kind, backend)

    def send(self, tensors: list[torch.Tensor], dstRank: int, tag: int) -> dist.Work:  # noqa: N803 - torch's name
        # The copy waits for the kernels that compute the tensor.
        copies = [tensor.detach().to("cpu", copy=True).contiguous() for tensor in tensors]
        return self.gloo.send(copies, dstRank, tag)

    def recv(self, tensors: list[torch.Tensor], srcRank: int, tag: int) -> dist.Work:  # noqa: N803 - torch's name
        copies = [torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in tensors]
        return _Received(self.gloo.recv(copies, srcRank, tag), copies, tensors)


def _delegate(name: str) -> Callable[..., Any]:
    def call(group: HostGroup, *args: Any, **kwargs: Any) -> Any:
        return getattr(group.gloo, name)(*args, **kwargs)

    return call


for _name in _DELEGATED:
    if hasattr(dist.ProcessGroup, _name):
        setattr(HostGroup, _name, _delegate(_name))


class _Received(dist.Work):
    """Copies what has arrived to the tensors that were to be received, in the thread that waits for it."""

    def __init__(self, work: dist.Work, copies: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._work, self._copies, self._tensors = work, copies, tensors

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        done = self._work.wait(timeout)
        for tensor, copy in zip(self._tensors, self._copies, strict=True):
            tensor.detach().copy_(copy)  # A receiver may be a leaf of an autograd graph.
        return done

    def is_completed(self) -> bool:
        return self._work.is_completed()


dist.Backend.register_backend(HOST, HostGroup, devices=["cpu", "cuda"])
