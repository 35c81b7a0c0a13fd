"""Limits of CPU time that hold on slower machines, too."""

import time

_LOOP_S = 0.0075
"""CPU time of the loop below on the machine on which the limits were measured, while it was idle."""


def slowness() -> float:
    """How many times as long as usual a program computes at the moment, at least 1.

    Machines differ, and the same instructions take up to three times as long while other programs share the core, its
    caches or the host. Multiply a limit of CPU time by it.
    """
    return max(1.0, min(_loop_s() for _ in range(5)) / _LOOP_S)


def _loop_s() -> float:
    begin, total = time.thread_time(), 0
    for number in range(100_000):
        total += number
    return time.thread_time() - begin
