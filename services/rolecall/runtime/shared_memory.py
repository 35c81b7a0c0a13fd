# pyright: standard
"""Large tensors in messages between workers of one machine: in shared memory instead of through sockets.

A message of 5 MB through a socket takes about 3.5 ms of CPU time in both processes, and one copy takes 0.5 ms. A sender
has blocks of shared memory for each receiver, and uses them again when the receiver has freed the tensor. Each block
is a file in `/dev/shm` whose name exists until the receiver opens it. The messages themselves, which say where the
tensors are, still go through sockets, so that a worker that waits for one uses no CPU time.

Containers have a `/dev/shm` each, unless they share one. Therefore each worker has an empty file there while it is in
its gang, by which the others know whether it sees theirs.
"""

import ctypes
import logging
import os
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from operator import is_
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from rolecall.logs import about
from rolecall.runtime import context as runtime_context
from rolecall.runtime.context import WorkerContext, worker_name
from rolecall.spec.errors import PeerLost
from rolecall.spec.plan import WorkerLaunch
from rolecall.spec.shared_memory import SHARED_MEMORY, block_name, presence_name

_LOG = logging.getLogger(__name__)
MIN_BYTES = 128 << 10
"""The size from which a tensor is shared; smaller ones are sent faster than their place."""
MAX_BLOCKS = 1024
"""The most blocks that a worker has at a time."""
_HEADER = 64
"""Bytes before the tensor, which is aligned to them. The first one is not 0 while the receiver needs the tensor."""
_FREE, _TAKEN = 0, 1
_PAGE = 4096
_INTEGERS = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}


def shared(value: Any, receiver: str) -> Any:
    """The same value for a message to the worker `receiver`, such as `trainer-0`, which must unpickle it exactly once.

    If that worker uses the same `/dev/shm`, it gets the large tensors in this value, and in its tuples, lists and
    dictionaries, in shared memory. They are its own, like all tensors in messages, except that it can't resize them,
    and that processes which it forks must not use them. The sender must not end before they have arrived. Other tensors
    are sent as usual: those that are small, on a GPU or need gradients. So are all that would need new blocks while
    half of `/dev/shm` is in use.
    """
    outbox = _outbox()
    return outbox.put(value, receiver, {}) if outbox is not None and outbox.reaches(receiver) else value


@contextmanager
def presence(launch: WorkerLaunch) -> Generator[None]:
    """Let the gang's other workers send this one tensors in shared memory. Enter this before RPC starts, so that they
    know from their first message on."""
    path = SHARED_MEMORY / presence_name(launch, launch.worker.rank)
    with suppress(OSError):  # Without shared memory, all tensors go through sockets.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()


class _Place(NamedTuple):
    """The place of a tensor, in a message."""

    block: str
    """The file's name."""
    size: int
    """The bytes of the block."""
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dropped: tuple[str, ...]
    """Blocks that the sender no longer uses."""


class _Shared:
    """Stands for a tensor in a message: its pickle is the call that finds the tensor."""

    def __init__(self, place: _Place) -> None:
        self._place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (self._place,)


class _Block:
    """Shared memory for one tensor at a time, on the sender's side."""

    def __init__(self, name: str, size: int) -> None:
        """Raises `OSError` if there is no memory for it."""
        self.name, self.size = name, size
        file = os.open(SHARED_MEMORY / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # Without its memory, a write would end the process if there were none left then.
            os.posix_fallocate(file, 0, _HEADER + size)
            self._memory = _mapped(file, _HEADER + size)
        except OSError:
            (SHARED_MEMORY / name).unlink()
            raise
        finally:
            os.close(file)
        self._state = _state_of(self._memory)

    @property
    def is_free(self) -> bool:
        return self._state.value == _FREE

    def take(self) -> None:
        self._state.value = _TAKEN

    def write(self, tensor: Tensor, dropped: Sequence[str]) -> _Place:
        """Copy a tensor that is not larger than the block. Its strides remain, unless it has gaps."""
        strides = torch.empty_like(tensor, device="meta").stride()
        target = self._memory[_HEADER : _HEADER + tensor.nbytes].view(tensor.dtype)
        target.as_strided(tensor.shape, strides).copy_(tensor)
        return _Place(self.name, self.size, tensor.dtype, tuple(tensor.shape), strides, tuple(dropped))


class _Outbox:
    """The blocks of one worker."""

    def __init__(self, context: WorkerContext[Any]) -> None:
        self.context = context
        self._ranks = {worker_name(one.role, one.role_rank): one.rank for one in context.launch.gang.workers}
        self._reached = dict[str, bool]()
        self._blocks: defaultdict[str, list[_Block]] = defaultdict(list)
        self._dropped: defaultdict[str, list[str]] = defaultdict(list)
        """The blocks of each receiver that are no longer used, until its next message says so."""
        self._made = 0
        """The blocks so far, for their names."""
        self._lock = threading.Lock()
        self._allocating = threading.Lock()

    def reaches(self, receiver: str) -> bool:
        """True if this other worker of the gang sees the files of this one."""
        if receiver not in self._reached:
            self._reached[receiver] = receiver in self._ranks and self._sees(self._ranks[receiver])
        return self._reached[receiver]

    def _sees(self, rank: int) -> bool:
        if rank == self.context.rank:
            return False
        try:
            found = os.stat(SHARED_MEMORY / presence_name(self.context.launch, rank), follow_symlinks=False)
        except OSError:
            return False
        return found.st_uid == os.geteuid()  # Nobody else could open the blocks.

    def put(self, value: Any, receiver: str, known: dict[int, _Shared]) -> Any:
        """`known` has what stands for the tensors of this message, by their ids, so that equal ones remain one."""
        kind = type(value)
        if kind is Tensor:
            return self._put_tensor(value, receiver, known)
        make: Callable[[list[Any]], Any]
        if kind is dict:
            items = cast(dict[Any, Any], value)
            parts, make = items.values(), lambda changed: dict(zip(items, changed, strict=True))
        elif kind is list or kind is tuple:
            parts, make = cast(Sequence[Any], value), kind
        elif issubclass(kind, tuple) and hasattr(kind, "_make"):
            parts, make = cast(Sequence[Any], value), cast(Any, kind)._make
        else:
            return value
        changed = [self.put(one, receiver, known) for one in parts]
        return value if all(map(is_, changed, parts)) else make(changed)

    def _put_tensor(self, tensor: Tensor, receiver: str, known: dict[int, _Shared]) -> Tensor | _Shared:
        if id(tensor) in known or not _can_be_shared(tensor):
            return known.get(id(tensor), tensor)
        block = self._take_free(tensor.nbytes, receiver) or self._take_new(tensor.nbytes, receiver)
        if block is None:
            _log_full()
            return tensor
        with self._lock:
            dropped = self._dropped.pop(receiver, [])
        return known.setdefault(id(tensor), _Shared(block.write(tensor, dropped)))

    def _take_free(self, size: int, receiver: str) -> _Block | None:
        """A free block of this receiver, not much larger than `size`."""
        with self._lock:
            fitting = [one for one in self._blocks[receiver] if size <= one.size <= 2 * size and one.is_free]
            block = min(fitting, key=lambda one: one.size, default=None)
            if block is not None:
                block.take()
            return block

    def _take_new(self, size: int, receiver: str) -> _Block | None:
        """A new block, if there is memory for it. Until it is cleared, only threads that need new blocks, too, wait."""
        with self._allocating:
            block = self._new_block(size)
            if block is None:
                return None
            block.take()
            with self._lock:
                # Sizes of this kind of message have grown, or else there is no free block.
                blocks = self._blocks[receiver]
                replaced = [one for one in blocks if size / 2 <= one.size < size and one.is_free]
                self._blocks[receiver] = [*(one for one in blocks if one not in replaced), block]
                self._dropped[receiver] += [one.name for one in replaced]
            return block

    def _new_block(self, size: int) -> _Block | None:
        step = max(_PAGE, 1 << (size.bit_length() - 4))  # Sizes vary from step to step.
        rounded = -(-size // step) * step
        with self._lock:
            count = sum(map(len, self._blocks.values()))
        if count >= MAX_BLOCKS or not _has_memory(rounded):
            return None
        self._made += 1
        try:
            return _Block(block_name(self.context.launch, self._made), rounded)
        except OSError:
            return None


_lock = threading.Lock()
_own: _Outbox | None = None
_opened: dict[str, Tensor] = {}
"""The memory of other workers' blocks, by name."""


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
        tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_nested
        and (tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype in _INTEGERS)
        and tensor.nbytes >= MIN_BYTES
    )


def _has_memory(size: int) -> bool:
    """Half of `/dev/shm` is left to other programs: NCCL and loader processes fail without it."""
    try:
        found = os.statvfs(SHARED_MEMORY)
    except OSError:
        return False
    return (found.f_bavail - found.f_blocks / 2) * found.f_frsize >= size


@cache
def _log_full() -> None:
    text = "half of %s is in use, and the rest is kept free: large messages go through sockets, which takes longer"
    _LOG.warning(text, SHARED_MEMORY, extra=about("shared_memory_full"))


def _received(place: _Place) -> Tensor:
    """Called by the receiver, to unpickle a `_Shared`: its tensor, which keeps the block until it is freed."""
    with _lock:
        for name in place.dropped:
            _opened.pop(name, None)
        if place.block not in _opened:
            _opened[place.block] = _open(place.block, place.size)
        memory = _opened[place.block]
    buffer = (ctypes.c_char * place.size).from_address(memory.data_ptr() + _HEADER)
    # The memory must outlive the buffer, and the buffer the tensor.
    weakref.finalize(buffer, _release, memory, os.getpid()).atexit = False
    storage = torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()
    return torch.empty(0, dtype=place.dtype).set_(storage, 0, place.shape, place.strides)


def _open(block: str, size: int) -> Tensor:
    path = SHARED_MEMORY / block
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise PeerLost(f"the sender of a message has ended: its shared memory {block} no longer exists") from None
    try:
        found = os.fstat(file)
        if found.st_uid != os.geteuid() or found.st_size != _HEADER + size:
            raise PeerLost(f"another program has replaced the shared memory {block}")
        return _mapped(file, _HEADER + size)
    finally:
        os.close(file)
        path.unlink(missing_ok=True)


def _mapped(file: int, size: int) -> Tensor:
    """The memory of a file, as bytes; unlike `mmap`, it needs no file descriptor. Raises `OSError`."""
    try:
        with torch.inference_mode(False):  # Other modes may write to it, too.
            return torch.from_file(f"/proc/self/fd/{file}", shared=True, size=size, dtype=torch.uint8)
    except RuntimeError as error:
        raise OSError(str(error)) from error


def _state_of(memory: Tensor) -> ctypes.c_ubyte:
    """The first byte of a block. It has no reference to the memory, which must outlive it."""
    return ctypes.c_ubyte.from_address(memory.data_ptr())


def _release(memory: Tensor, receiver: int) -> None:
    if os.getpid() == receiver:  # And not a process that it forked, whose copies of tensors end, too.
        _state_of(memory).value = _FREE
