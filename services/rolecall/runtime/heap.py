"""The heap of a worker's process, as the GNU C library manages it."""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # `malloc.h`
_MMAP_BYTES = 32 << 20
"""The largest threshold that the library reaches by itself, depending on what was freed before."""
_TRIM_BYTES = 1 << 30


def keep_one_heap() -> None:
    """Let the threads that start later share the heaps that exist, and keep what a step frees for the next one.

    Call it before RPC and backward passes start their threads. The heaps are the process's first one, and those of the
    small threads that run already. Other C libraries than GNU's stay as they are. By default, each of many threads
    frees large tensors into a heap of its own. Their memory then stays with this thread, or it goes back to the kernel,
    which must clear it again for the next step.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, _MMAP_BYTES), (_TRIM_THRESHOLD, _TRIM_BYTES)):
            mallopt(option, value)
