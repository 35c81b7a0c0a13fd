"""Limits of CPU time that hold on slower machines, too."""

import time

_LOOP_S = 0.0075
"""CPU time of the loop below on a machine at its usual speed. It is an estimate: machines on which the fast tests took
1.85 times as long as usual needed 0.012 to 0.017 s."""


def slowness() -> float:
    """How many times as long as usual a program computes at the moment, at least 1.

    Machines differ, and the same instructions take longer while other programs share the core, its caches or the host.
    Multiply a limit of CPU time by it.
    """
    return max(1.0, min(_loop_s() for _ in range(5)) / _LOOP_S)


def _loop_s() -> float:
    begin, total = time.thread_time(), 0
    for number in range(100_000):
        total += number
    return time.thread_time() - begin
