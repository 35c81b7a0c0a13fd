"""The heap of a worker's process, as the GNU C library manages it."""

import ctypes
from collections.abc import Mapping

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # `malloc.h`
_MMAP_BYTES = 32 << 20
"""The largest threshold that the library reaches by itself, depending on what was freed before."""
_TRIM_BYTES = 1 << 30


def share_one_heap() -> None:
    """Let all threads of this process and of its forks share one heap.

    Call it before the first other thread starts, because the heaps that exist stay. By default, a thread frees memory
    into a heap of its own, where it stays with this thread. Other C libraries than GNU's stay as they are.
    """
    _set({_ARENA_MAX: 1})


def keep_freed_memory() -> None:
    """Keep what a step frees in the heap for the next step.

    By default, the memory of large tensors goes back to the kernel, which must clear it again for the next step. Other
    C libraries than GNU's stay as they are.
    """
    _set({_MMAP_THRESHOLD: _MMAP_BYTES, _TRIM_THRESHOLD: _TRIM_BYTES})


def _set(options: Mapping[int, int]) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in options.items():
            mallopt(option, value)
