"""What a process asks of the kernel for itself, and how it ended in words."""

import ctypes
import os
import signal
from collections.abc import Iterable

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_CAPABILITY_VERSION_3 = 0x20080522


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def forbid_inspection() -> None:
    """Hide this process's memory and environment from others of the same user.

    The kernel then refuses them `/proc/PID/environ` and `/proc/PID/mem`, and to attach as a debugger; it writes no core
    dump either. It holds until the next `execve`, and a fork inherits it. A process with `CAP_SYS_PTRACE` or
    `CAP_PERFMON`, such as root's, isn't stopped by it.
    """
    _require(_LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl(PR_SET_DUMPABLE)")


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when the thread that made it ends."""
    _require(_LIBC.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def describe_exit(status: int) -> str:
    """A return code of `subprocess` in words, for example `SIGKILL` or `exit code 1`."""
    return signal.Signals(-status).name if status < 0 else f"exit code {status}"


def keep_files_private() -> None:
    """Deny other users the files that this process and its children make from now on."""
    os.umask(0o077)


def keep_capabilities(kept: Iterable[int]) -> None:
    """Give up all capabilities of the calling thread but those (numbers of capabilities(7)), where it has any.

    With `PR_SET_NO_NEW_PRIVS` no `execve` brings them back, not even root's.
    """
    header, data = _Header(_CAPABILITY_VERSION_3, 0), (_Data * 2)()
    _require(_LIBC.capget(ctypes.byref(header), data), "capget")
    mask = sum(1 << number for number in kept)
    for place, half in enumerate(data):
        half.permitted &= mask >> (32 * place)
        half.effective &= half.permitted
        half.inheritable = 0
    _require(_LIBC.capset(ctypes.byref(header), data), "capset")


def _require(result: int, name: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
