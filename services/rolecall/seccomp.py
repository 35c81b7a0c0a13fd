"""A seccomp filter for what Landlock doesn't cover: see seccomp(2). It is permanent and inherited by children.

A filter sees only numbers, so it can't inspect paths or determine whose thread an id refers to. It therefore rejects
calls that training never needs. It rejects calls with a process id only if the id can't be a thread of the caller,
because CUDA, NCCL and OpenMP set the affinity and the scheduling of their threads by id.
"""

import ctypes
import errno
import os
import platform
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rolecall.process import LIBC, check_result, set_no_new_privileges

_SET_MODE_FILTER, _GET_ACTION_AVAIL = 1, 2
_SPEC_ALLOW = 1 << 2
"""Otherwise older kernels also enable mitigations that slow down the whole process."""
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_X32 = 0x40000000
"""The smallest number of a call of the x32 ABI."""

Instruction = tuple[int, int, int, int]


class _Calls(NamedTuple):
    """The numbers of system calls on one architecture."""

    audit: int
    seccomp: int
    prlimit: int
    setpriority: int
    ioprio_set: int
    socket: int
    attributes: tuple[int, ...]
    """The families of chown(2), setxattr(2) and removexattr(2)."""
    objects: tuple[int, ...]
    """Those of sysvipc(7), mq_open(3) and keyctl(2). Their objects outlive a worker, and are open to other workers."""


_IO_URING_SETUP = 425
"""The same on all architectures. io_uring would bypass the filter."""
_XATTR_AT = (463, 466)
_CALLS = {
    "x86_64": _Calls(
        *(0xC000003E, 317, 302, 141, 251, 41),
        (92, 93, 94, 260, *range(188, 191), *range(197, 200), *_XATTR_AT),
        (*range(29, 32), *range(64, 67), *range(68, 72), 220, 240, 241, *range(248, 251)),
    ),
    "aarch64": _Calls(
        *(0xC00000B7, 277, 261, 140, 30, 198),
        (54, 55, 5, 6, 7, 14, 15, 16, *_XATTR_AT),
        (180, 181, *range(186, 198), *range(217, 220)),
    ),
}


def check() -> None:
    """Raise `OSError` if `restrict` can't work: `ENOSYS` if the processor is unsupported or the kernel has no filters,
    another error if the container forbids it.
    """
    action = ctypes.c_uint32(_ERROR)
    _seccomp(_system_calls(), _GET_ACTION_AVAIL, 0, ctypes.byref(action))


def restrict() -> None:
    """Restrict the calling thread, and all threads and processes that it starts later.

    Calls then fail with `EPERM` if they change limits of other processes (prlimit), priorities of process groups or
    users, owners, or extended attributes, use System V IPC, POSIX message queues or the kernel's key rings, or create a
    socket to the hypervisor (`AF_VSOCK`). Calls of io_uring and 32-bit system calls fail with `ENOSYS`.

    Child processes can set their own limits with `setrlimit`, which takes no process id. Call this function while the
    process has a single thread. Raises `OSError` as `check` does.
    """
    calls = _system_calls()
    instructions = list(_program(calls, os.getpid()))
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in instructions))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(instructions), ctypes.addressof(code)))
    set_no_new_privileges()
    _seccomp(calls, _SET_MODE_FILTER, _SPEC_ALLOW, program)


def _system_calls() -> _Calls:
    if (calls := _CALLS.get(platform.machine())) is None:
        raise OSError(errno.ENOSYS, f"the filter supports only {' and '.join(_CALLS)}")
    return calls


def _program(calls: _Calls, own: int) -> Iterator[Instruction]:
    """The filter for the process with the id `own`. Jump offsets count the instructions to skip."""
    yield _load(_ARCHITECTURE)
    yield _IF_EQUAL, 1, 0, calls.audit
    yield _fail(errno.ENOSYS)
    yield _load(_NUMBER)
    yield _IF_AT_LEAST, 0, 1, _X32
    yield _fail(errno.ENOSYS)
    yield _IF_EQUAL, 0, 1, _IO_URING_SETUP
    yield _fail(errno.ENOSYS)
    for number in calls.attributes + calls.objects:
        yield _IF_EQUAL, 0, 1, number
        yield _fail(errno.EPERM)
    yield from _if_call(calls.setpriority, _unless_argument(0, (0,)))  # PRIO_PROCESS
    yield from _if_call(calls.ioprio_set, _unless_argument(0, (1,)))  # IOPRIO_WHO_PROCESS
    allow = (_RETURN, 0, 0, _ALLOW)
    no_vsock = [_load(_ARGUMENTS), (_IF_EQUAL, 0, 1, socket.AF_VSOCK), _fail(errno.EPERM), allow]
    yield from _if_call(calls.socket, no_vsock)
    yield from _if_call(calls.prlimit, _unless_argument(0, (0, own), _reject_pointer(2)))
    yield allow


def _if_call(number: int, rule: Sequence[Instruction]) -> Iterator[Instruction]:
    """Apply a rule to one system call. The rule must end in a return."""
    yield _IF_EQUAL, 0, len(rule), number
    yield from rule


def _unless_argument(index: int, allowed: Sequence[int], otherwise: Sequence[Instruction] = ()) -> list[Instruction]:
    """Allow the call if its 32-bit argument is one of `allowed`, otherwise apply `otherwise`, by default reject it."""
    reject = list(otherwise) or [_fail(errno.EPERM)]
    tests = [(_IF_EQUAL, len(allowed) - 1 - at + len(reject), 0, value) for at, value in enumerate(allowed)]
    return [_load(_ARGUMENTS + 8 * index), *tests, *reject, (_RETURN, 0, 0, _ALLOW)]


def _reject_pointer(index: int) -> list[Instruction]:
    """Reject the call if its 64-bit argument is not NULL, otherwise continue."""
    low = _ARGUMENTS + 8 * index
    return [_load(low), (_IF_EQUAL, 0, 2, 0), _load(low + 4), (_IF_EQUAL, 1, 0, 0), _fail(errno.EPERM)]


def _load(offset: int) -> Instruction:
    return _LOAD, 0, 0, offset


def _fail(number: int) -> Instruction:
    return _RETURN, 0, 0, _ERROR | number


def _seccomp(calls: _Calls, operation: int, flags: int, argument: object) -> None:
    number, operation_, flags_ = ctypes.c_long(calls.seccomp), ctypes.c_uint(operation), ctypes.c_uint(flags)
    check_result(LIBC.syscall(number, operation_, flags_, argument), "seccomp")
