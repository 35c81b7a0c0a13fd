"""Where a pipeline rank's time goes, measured at every piece of work that the schedule gives it."""

import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

import torch
import torch.distributed as dist

from rolecall.workloads.transformer_pipeline.grid import Grid

P = ParamSpec("P")
R = TypeVar("R")
Moment = TypeVar("Moment")
_WORK = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")
"""The methods of torch's stages that compute; what they need was received before and is sent after."""


class Clock(Protocol, Generic[Moment]):
    """Takes moments now and reads them later."""

    def now(self) -> Moment:
        """This moment."""
        ...

    def between(self, begin: Moment, end: Moment) -> float:
        """Seconds from one moment to the other, when both have come."""
        ...


class HostClock:
    """For the CPU, which computes while the caller waits."""

    def now(self) -> float:
        """This moment."""
        return time.perf_counter()

    def between(self, begin: float, end: float) -> float:
        """Seconds."""
        return end - begin


class GpuClock:
    """For a GPU, which is given work and does it later: moments are marks between its pieces of work."""

    def now(self) -> torch.cuda.Event:
        """This moment of the stream under way."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Seconds; waits until the GPU has come to `end`."""
        end.synchronize()
        return begin.elapsed_time(end) / 1000


class Meter:
    """Notes each step's length, the work in it, and the span from the first piece of work to the last's end."""

    def __init__(self, clock: Clock[Any]) -> None:
        self._clock = clock
        self._work: list[tuple[Any, Any]] = []
        self.lengths, self.worked, self.spans = array("d"), array("d"), array("d")

    def watch(self, stage: Any) -> None:
        """Measure what one of torch's pipeline stages computes from now on."""
        for name in _WORK:
            setattr(stage, name, self.timed(getattr(stage, name)))

    def timed(self, work: Callable[P, R]) -> Callable[P, R]:
        """`work`, measured."""

        def measured(*args: P.args, **kwargs: P.kwargs) -> R:
            begin = self._clock.now()
            done = work(*args, **kwargs)
            self._work.append((begin, self._clock.now()))
            return done

        return measured

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around one run of the schedule."""
        self._work.clear()
        begin = self._clock.now()
        yield
        between = self._clock.between
        self.lengths.append(between(begin, self._clock.now()))
        self.worked.append(sum(between(*piece) for piece in self._work))
        self.spans.append(between(self._work[0][0], self._work[-1][1]))


def stage_times(meter: Meter, grid: Grid) -> dict[str, float]:
    """Seconds per pipeline rank, over all steps but an attempt's first, means over the replicas; equal on all workers.

    A step lasts until the slowest rank of its replica is done. Of that time a rank computes, waits for its neighbours
    between its first and its last piece of work, and is idle before and after. The first step also sets connections
    up. Called by all workers together.
    """
    lengths, worked, spans = (
        torch.tensor(times[1:], dtype=torch.float64) for times in (meter.lengths, meter.worked, meter.spans)
    )
    slowest = lengths.to(grid.device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX, group=grid.pipeline)
    whole = float(slowest.sum())
    compute, span = float(worked.sum()), float(spans.sum())
    table = torch.zeros(grid.ranks, 3, dtype=torch.float64, device=grid.device)
    table[grid.rank] = table.new_tensor([compute, span - compute, whole - span])
    dist.all_reduce(table)
    return _named((table / grid.replicas).tolist())


def _named(table: list[list[float]]) -> dict[str, float]:
    kinds = ("compute", "wait", "idle")
    times = {f"stage_{rank}_{kind}_s": row[i] for rank, row in enumerate(table) for i, kind in enumerate(kinds)}
    whole = sum(map(sum, table))
    return times | ({"bubble_measured": 1 - sum(row[0] for row in table) / whole} if whole else {})
