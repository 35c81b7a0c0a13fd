"""A seccomp filter for what Landlock does not cover: see seccomp(2). It holds for good, for children too.

The kernel's filter sees numbers only: neither paths nor whose thread a number names. So it refuses what no training
needs at all, and where a call names a process it refuses only what can't be the caller's own thread. CUDA, NCCL and
OpenMP set the affinity and the scheduling of their threads by number, which stays allowed.
"""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_PR_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER, _GET_ACTION_AVAIL = 1, 2
_SPEC_ALLOW = 1 << 2
"""Without it, older kernels slow down the whole process."""
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_X32 = 0x40000000
"""Numbers from here on are calls of another interface of the same processor."""
_LIBC = ctypes.CDLL(None, use_errno=True)

Line = tuple[int, int, int, int]


class _Calls(NamedTuple):
    """Numbers of system calls, by architecture."""

    audit: int
    seccomp: int
    prlimit: int
    setpriority: int
    ioprio_set: int
    others: tuple[int, ...]
    """The families of chown(2), setxattr(2) and removexattr(2)."""


_IO_URING_SETUP = 425
"""It would lead around the filter. Of all architectures."""
_XATTR_AT = (463, 466)
_CALLS = {
    "x86_64": _Calls(0xC000003E, 317, 302, 141, 251, (92, 93, 94, 260, 188, 189, 190, 197, 198, 199, *_XATTR_AT)),
    "aarch64": _Calls(0xC00000B7, 277, 261, 140, 30, (54, 55, 5, 6, 7, 14, 15, 16, *_XATTR_AT)),
}


def check() -> None:
    """Raise `OSError` where `restrict` can't work: `ENOSYS` (not for this processor, or a kernel without filters) or
    another number where the container refuses it.
    """
    action = ctypes.c_uint32(_ERROR)
    _seccomp(_known(), _GET_ACTION_AVAIL, 0, ctypes.byref(action))


def restrict() -> None:
    """Refuse with `EPERM`, to the calling thread and what it starts: new limits (prlimit) for processes other than this
    one, priorities of whole groups and users, and changes of owners and extended attributes; with `ENOSYS`: io_uring
    and 32-bit system calls.

    What this process starts sets limits of its own by `setrlimit`, which names no process. Call it while the process
    has one thread. Raises `OSError` as `check` does.
    """
    calls = _known()
    lines = list(_program(calls, os.getpid()))
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in lines))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(lines), ctypes.addressof(code)))
    _require(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")
    _seccomp(calls, _SET_MODE_FILTER, _SPEC_ALLOW, program)


def _known() -> _Calls:
    if (calls := _CALLS.get(platform.machine())) is None:
        raise OSError(errno.ENOSYS, f"the filter is for {' and '.join(_CALLS)} alone")
    return calls


def _program(calls: _Calls, own: int) -> Iterator[Line]:
    """The filter for the process `own`. A jump of a test counts the lines that it passes over."""
    yield _load(_ARCHITECTURE)
    yield _IF_EQUAL, 1, 0, calls.audit
    yield _fail(errno.ENOSYS)
    yield _load(_NUMBER)
    yield _IF_AT_LEAST, 0, 1, _X32
    yield _fail(errno.ENOSYS)
    yield _IF_EQUAL, 0, 1, _IO_URING_SETUP
    yield _fail(errno.ENOSYS)
    for number in calls.others:
        yield _IF_EQUAL, 0, 1, number
        yield _fail(errno.EPERM)
    yield from _of_call(calls.setpriority, _unless_argument(0, (0,)))  # PRIO_PROCESS
    yield from _of_call(calls.ioprio_set, _unless_argument(0, (1,)))  # IOPRIO_WHO_PROCESS
    yield from _of_call(calls.prlimit, _unless_argument(0, (0, own), _if_pointer(2)))
    yield _RETURN, 0, 0, _ALLOW


def _of_call(number: int, rule: Sequence[Line]) -> Iterator[Line]:
    """Apply a rule, which decides, to one system call."""
    yield _IF_EQUAL, 0, len(rule), number
    yield from rule


def _unless_argument(place: int, allowed: Sequence[int], otherwise: Sequence[Line] = ()) -> list[Line]:
    """Allow the call if its 32-bit argument is one of `allowed`; else do `otherwise`, which is to refuse it."""
    refuse = list(otherwise) or [_fail(errno.EPERM)]
    tests = [(_IF_EQUAL, len(allowed) - 1 - at + len(refuse), 0, value) for at, value in enumerate(allowed)]
    return [_load(_ARGUMENTS + 8 * place), *tests, *refuse, (_RETURN, 0, 0, _ALLOW)]


def _if_pointer(place: int) -> list[Line]:
    """Refuse the call if its 64-bit argument is not NULL; else go on."""
    low = _ARGUMENTS + 8 * place
    return [_load(low), (_IF_EQUAL, 0, 2, 0), _load(low + 4), (_IF_EQUAL, 1, 0, 0), _fail(errno.EPERM)]


def _load(offset: int) -> Line:
    return _LOAD, 0, 0, offset


def _fail(number: int) -> Line:
    return _RETURN, 0, 0, _ERROR | number


def _seccomp(calls: _Calls, operation: int, flags: int, argument: object) -> None:
    number, operation_, flags_ = ctypes.c_long(calls.seccomp), ctypes.c_uint(operation), ctypes.c_uint(flags)
    _require(_LIBC.syscall(number, operation_, flags_, argument), "seccomp")


def _require(result: int, name: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
