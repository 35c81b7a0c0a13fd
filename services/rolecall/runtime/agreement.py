"""How the ranks of a process group take one decision at the same step; a driver without one decides alone.

A stop flag reaches the ranks' machines at different moments; ranks that left at different steps would wait for one
another for ever. So all look at it in the same collective, every so many steps that a quarter of a second passes
between looks.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

_LOOK_EVERY_S = 0.25
_MOST_STEPS = 1000.0


@dataclass(frozen=True, slots=True)
class Decision:
    """What all ranks do after this step."""

    stop: bool = False
    checkpoint: bool = False


class Agreement:
    """Called by every rank after every step; costs a collective of three numbers a few times a second."""

    def __init__(self, start_step: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = start_step
        self._last_step = start_step
        self._last_time = clock()

    def after(self, step: int, wish: Callable[[], Decision]) -> Decision:
        """What all ranks do after `step` (the same on all ranks): whatever any rank wishes.

        `wish` is asked only when the ranks look, so that it may cost something.
        """
        if step < self._next:
            return Decision()
        mine = wish()
        flags = torch.tensor([float(mine.stop), float(mine.checkpoint), self._gap(step)])
        if dist.is_initialized():
            dist.all_reduce(flags, dist.ReduceOp.MAX)
        self._next = step + int(flags[2])
        self._last_step, self._last_time = step, self._clock()
        return Decision(stop=bool(flags[0]), checkpoint=bool(flags[1]))

    def _gap(self, step: int) -> float:
        """How many steps this rank does between looks, at its present speed."""
        seconds = max(self._clock() - self._last_time, 1e-6)
        return min(max((step - self._last_step) * _LOOK_EVERY_S / seconds, 1.0), _MOST_STEPS)
