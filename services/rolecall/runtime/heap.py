"""The heap of a worker's process, as the GNU C library manages it.

It is apart from its caller, `rendezvous`, and without torch, so that a test measures the heap in a process of its own
(`tests/settings/test_child_environments.py`).
"""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # `malloc.h`
_MMAP_BYTES = 32 << 20
"""The largest threshold that the library reaches by itself, depending on what was freed before."""
_TRIM_BYTES = 1 << 30


def keep_freed_memory() -> None:
    """Keep what a step frees in the heap for the next step.

    By default, the memory of large tensors goes back to the kernel, which must clear it again for the next step. Other
    C libraries than GNU's stay as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in ((_MMAP_THRESHOLD, _MMAP_BYTES), (_TRIM_THRESHOLD, _TRIM_BYTES)):
            mallopt(option, value)
