"""Decisions that all ranks of a process group make at the same step. Without a process group, a rank decides alone.

A stop flag reaches the ranks at different times, and ranks that stopped at different steps would wait for each other
indefinitely. Therefore all ranks check it in the same collective, about every quarter of a second.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from rolecall.runtime.context import span

_CHECK_EVERY_S = 0.25
_MAX_STEPS = 1000.0


@dataclass(frozen=True, slots=True)
class Decision:
    """The common decision after a step."""

    stop: bool = False
    checkpoint: bool = False


class Agreement:
    """Agrees with the other ranks, in a collective of three numbers a few times a second."""

    def __init__(self, start_step: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = start_step
        self._last_step = start_step
        self._last_time = clock()

    def after(self, step: int, wish: Callable[[], Decision]) -> Decision:
        """The decision after `step`, which is the same on all ranks: what any rank wishes. Call it after every step.

        `wish` is called only for a collective, so that it may be slow.
        """
        if step < self._next:
            return Decision()
        own = wish()
        seconds = max(self._clock() - self._last_time, 1e-6)
        # The number of steps until the next check, at this rank's present speed.
        gap = min(max((step - self._last_step) * _CHECK_EVERY_S / seconds, 1.0), _MAX_STEPS)
        flags = torch.tensor([float(own.stop), float(own.checkpoint), gap])
        if dist.is_initialized():
            with span("agree", "wait"):
                dist.all_reduce(flags, dist.ReduceOp.MAX)
        self._next = step + int(flags[2])
        self._last_step, self._last_time = step, self._clock()
        return Decision(stop=bool(flags[0]), checkpoint=bool(flags[1]))
