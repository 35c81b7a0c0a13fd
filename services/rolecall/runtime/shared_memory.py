# pyright: standard
"""Large tensors in messages between workers of one node: in shared memory instead of through sockets.

A message of 5 MB through a socket takes about 3.5 ms of CPU time in both processes, and one copy takes 0.5 ms. A sender
has blocks of shared memory for each receiver, and uses them again when the receiver has released the tensor. Each block
is a file in `/dev/shm` whose name exists until the receiver opens it. The messages themselves, which say where the
tensors are, still go through sockets, so that a worker that waits for one uses no CPU time.
"""

import ctypes
import math
import mmap
import os
import secrets
import threading
import weakref
from collections import defaultdict
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from rolecall.runtime import context as runtime_context
from rolecall.runtime.context import WorkerContext, worker_name
from rolecall.spec.workdir import SHARED_MEMORY, shared_memory_prefix

MIN_BYTES = 64 << 10
"""The size from which a tensor is shared; smaller ones are sent faster than their place."""
MAX_BLOCKS = 256
"""Of one sender. Each takes a file descriptor there and in its receiver."""
_HEADER = 64
"""Bytes before the tensor, which is aligned to them. The first one is not 0 while the receiver needs the tensor."""


def shared(value: Any, receiver: str) -> Any:
    """The same value for a message to the worker `receiver`, such as `trainer-0`, which must be unpickled once there.

    If that worker is on this node, it gets the large tensors in this value, and in its tuples, lists and dictionaries,
    in shared memory. They are the receiver's own, as all tensors in messages. Other tensors are sent as usual: those
    that are small, on a GPU, need gradients or have gaps, and all tensors when half of `/dev/shm` is in use.
    """
    outbox = _outbox()
    return outbox.put(value, receiver) if outbox is not None and receiver in outbox.receivers else value


class _Place(NamedTuple):
    """The place of a tensor, in a message."""

    block: str
    """The file's name."""
    size: int
    """The bytes of the block."""
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Shared:
    """Stands for a tensor in a message: its pickle is the call that finds the tensor."""

    def __init__(self, place: _Place) -> None:
        self._place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, tuple(self._place)


class _Block:
    """Shared memory for one tensor at a time, on the sender's side."""

    def __init__(self, name: str, size: int) -> None:
        """Raises `OSError` if there is no memory for it."""
        self.name, self.size = name, size
        file = os.open(SHARED_MEMORY / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # Without its memory, a write would end the process if there were none left then.
            os.posix_fallocate(file, 0, _HEADER + size)
            self._memory = mmap.mmap(file, _HEADER + size)
        except OSError:
            (SHARED_MEMORY / name).unlink()
            raise
        finally:
            os.close(file)
        self._bytes = torch.frombuffer(self._memory, dtype=torch.uint8, offset=_HEADER)

    @property
    def is_free(self) -> bool:
        return self._memory[0] == 0

    def take(self) -> None:
        self._memory[0] = 1

    def write(self, tensor: Tensor) -> _Place:
        """Copy a tensor that is not larger than the block. Its strides remain, unless it has gaps."""
        strides = torch.empty_like(tensor, device="meta").stride()
        self._bytes[: tensor.nbytes].view(tensor.dtype).as_strided(tensor.shape, strides).copy_(tensor)
        return _Place(self.name, self.size, tensor.dtype, tuple(tensor.shape), strides)


class _Outbox:
    """The blocks of one worker."""

    def __init__(self, context: WorkerContext[Any]) -> None:
        own = context.launch.worker
        self.context = context
        self.receivers = frozenset(
            worker_name(one.role, one.role_rank)
            for one in context.launch.gang.workers
            if one.node == own.node and one.rank != own.rank
        )
        prefix = shared_memory_prefix(context.launch.job, context.launch.attempt, own.rank)
        # No job can guess the name, which exists only for a moment.
        self._prefix = f"{prefix}{secrets.token_hex(8)}-"
        self._blocks: defaultdict[str, list[_Block]] = defaultdict(list)
        self._count = 0
        self._lock = threading.Lock()

    def put(self, value: Any, receiver: str) -> Any:
        match value:
            case Tensor():
                block = self._take(value.nbytes, receiver) if _can_be_shared(value) else None
                return value if block is None else _Shared(block.write(value.detach()))
            case dict():
                items = cast(dict[Any, Any], value)
                return {key: self.put(one, receiver) for key, one in items.items()}
            case list():
                return [self.put(one, receiver) for one in cast(list[Any], value)]
            case tuple():
                found = [self.put(one, receiver) for one in cast(tuple[Any, ...], value)]
                return type(value)(*found) if hasattr(value, "_fields") else tuple(found)  # pyright: ignore[reportUnknownArgumentType] - a named tuple
            case _:
                return value

    def _take(self, size: int, receiver: str) -> _Block | None:
        """A free block for this receiver, not much larger than `size`; None if there is no memory for a new one."""
        with self._lock:
            for block in self._blocks[receiver]:
                if size <= block.size <= 2 * size and block.is_free:
                    block.take()
                    return block
            rounded = -(-size * 9 // 8 // mmap.PAGESIZE) * mmap.PAGESIZE - _HEADER  # Sizes vary from step to step.
            if self._count >= MAX_BLOCKS or not _has_memory(rounded):
                return None
            try:
                block = _Block(f"{self._prefix}{self._count}", rounded)
            except OSError:
                return None
            self._count += 1
            self._blocks[receiver].append(block)
            block.take()
            return block


_lock = threading.Lock()
_own: _Outbox | None = None
_opened: dict[str, mmap.mmap] = {}
"""The blocks of other workers, by name."""


def _outbox() -> _Outbox | None:
    """The blocks of the present worker; None in other processes."""
    global _own  # noqa: PLW0603 - of the process, as its context
    context = runtime_context.current_or_none()
    if context is None:
        return None
    with _lock:
        if _own is None or _own.context is not context:
            _own = _Outbox(context)
        return _own


def _can_be_shared(tensor: Tensor) -> bool:
    return (
        type(tensor) is Tensor
        and tensor.layout == torch.strided
        and tensor.nbytes >= MIN_BYTES
        and tensor.device.type == "cpu"
        and not tensor.requires_grad
        and not tensor.is_quantized
    )


def _has_memory(size: int) -> bool:
    """Half of `/dev/shm` is left to other programs: NCCL and loader processes fail without it."""
    try:
        found = os.statvfs(SHARED_MEMORY)
    except OSError:
        return False
    return (found.f_bavail - found.f_blocks / 2) * found.f_frsize >= size


def _received(block: str, size: int, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    """Called by the receiver, to unpickle a `_Shared`: its tensor, which keeps the block until it is freed."""
    with _lock:
        memory = _opened.get(block)
        if memory is None:
            path = SHARED_MEMORY / block
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                path.unlink()
                memory = _opened[block] = mmap.mmap(file, _HEADER + size)
            finally:
                os.close(file)
    buffer = (ctypes.c_char * size).from_buffer(memory, _HEADER)
    weakref.finalize(buffer, _release, memory).atexit = False
    return torch.frombuffer(buffer, dtype=dtype, count=math.prod(shape)).as_strided(shape, strides)


def _release(memory: mmap.mmap) -> None:
    memory[0] = 0
