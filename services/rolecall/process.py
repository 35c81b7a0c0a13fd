"""What this process asks of the kernel for itself."""

import ctypes
import os

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_DUMPABLE = 4


def forbid_inspection() -> None:
    """Hide this process's memory and environment from others of the same user.

    The kernel then refuses them `/proc/PID/environ` and `/proc/PID/mem`, and to attach as a debugger; it writes no core
    dump either. A process with `CAP_SYS_PTRACE` isn't stopped by it. It holds until the next `execve`, and a fork
    inherits it.
    """
    if _LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_DUMPABLE): {os.strerror(number)}")
