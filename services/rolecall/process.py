"""Kernel settings that protect a process and its files or reduce its privileges, and descriptions of exit codes."""

import ctypes
import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
_CAPABILITY_VERSION_3 = 0x20080522
_OOM_SCORE = 500


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def forbid_inspection() -> None:
    """Hide this process's memory and environment from other processes of the same user.

    They can't read `/proc/PID/environ` and `/proc/PID/mem` or attach a debugger, and the kernel writes no core dumps.
    The setting lasts until the next `execve` and is inherited by a fork. It doesn't affect processes with
    `CAP_SYS_PTRACE` or `CAP_PERFMON`, such as those of root.
    """
    _prctl(_PR_SET_DUMPABLE, 0, "PR_SET_DUMPABLE")


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Make the kernel send this process a signal when the thread that created it ends."""
    _prctl(_PR_SET_PDEATHSIG, int(number), "PR_SET_PDEATHSIG")


def adopt_orphans() -> None:
    """Become the parent of each descendant whose own parent ends, instead of the machine's first process.

    The setting survives `execve`, and a fork does not inherit it. A descendant that does the same adopts only its own.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, "PR_SET_CHILD_SUBREAPER")


def be_killed_first() -> None:
    """Make the kernel end this process and its children before others when memory runs out.

    The setting is relative to the process's share of the memory: 1,000 is all of it. It never becomes less likely.
    """
    setting = Path("/proc/self/oom_score_adj")
    with suppress(OSError):  # A sandbox may hide the file.
        setting.write_text(str(max(int(setting.read_text()), _OOM_SCORE)))


def describe_exit(status: int) -> str:
    """A description of a return code of `subprocess`, such as `SIGKILL` or `exit code 1`."""
    if status >= 0:
        return f"exit code {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:  # Most real-time signals have no name.
        return f"signal {-status}"


def keep_files_private() -> None:
    """Deny other users access to files that this process and its children create from now on."""
    os.umask(0o077)


def keep_capabilities(kept: Iterable[int]) -> None:
    """Drop all capabilities of the calling thread except for `kept` (numbers from capabilities(7)).

    With `PR_SET_NO_NEW_PRIVS`, no `execve` restores them, not even for root.
    """
    header, data = _Header(_CAPABILITY_VERSION_3, 0), (_Data * 2)()
    check_result(LIBC.capget(ctypes.byref(header), data), "capget")
    mask = sum(1 << number for number in kept)
    for index, half in enumerate(data):
        half.permitted &= mask >> (32 * index)
        half.effective &= half.permitted
        half.inheritable = 0
    check_result(LIBC.capset(ctypes.byref(header), data), "capset")


def set_no_new_privileges() -> None:
    """Forbid this process and its children to gain privileges by `execve`, which Landlock and seccomp require."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, "PR_SET_NO_NEW_PRIVS")


def check_result(result: int, name: str) -> int:
    """Return the result of a function in `LIBC`, or raise `OSError` if it is negative."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def _prctl(option: int, value: int, name: str) -> None:
    """Set an option of this process, or raise `OSError`, with a remedy if the container forbids the call."""
    try:
        check_result(LIBC.prctl(option, value, 0, 0, 0), f"prctl({name})")
    except PermissionError as error:
        remedy = "allow prctl in the seccomp profile of the container"
        raise PermissionError(error.errno, f"{error.strerror}; {remedy}") from None
