"""Measures each pipeline rank's compute, wait and idle time, for every computation of the schedule."""

import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

import torch
import torch.distributed as dist

from rolecall.kit.grid import Grid
from rolecall.runtime.measuring import measurements
from rolecall.spec.metric import Phase

P = ParamSpec("P")
R = TypeVar("R")
Moment = TypeVar("Moment")
_COMPUTE_METHODS = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")
"""The methods of torch's stages that compute. Communication happens before and after them."""


class Clock(Protocol, Generic[Moment]):
    """Records moments; reads the seconds between two of them later."""

    def now(self) -> Moment: ...

    def between(self, begin: Moment, end: Moment) -> float: ...


class HostClock:
    """A clock for synchronous execution on the CPU."""

    def now(self) -> float:
        return time.perf_counter()

    def between(self, begin: float, end: float) -> float:
        return end - begin


class GpuClock:
    """A clock for asynchronous execution on a GPU, by CUDA events."""

    def now(self) -> torch.cuda.Event:
        """An event in the current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Seconds; waits until the GPU has reached `end`."""
        end.synchronize()
        return begin.elapsed_time(end) / 1000


class Meter:
    """Records for each step its duration, its compute time, and the span from first to last computation, in seconds.

    In the worker's metrics, the rest of the span is communication, and the rest of the step is waiting.
    """

    def __init__(self, clock: Clock[Any]) -> None:
        self._clock = clock
        self._calls: list[tuple[Any, Any]] = []
        self.durations, self.compute_times, self.spans = array("d"), array("d"), array("d")

    def watch(self, stage: Any) -> None:
        """Measure the computations of a torch pipeline stage from now on."""
        for name in _COMPUTE_METHODS:
            setattr(stage, name, self.timed(getattr(stage, name)))

    def timed(self, work: Callable[P, R]) -> Callable[P, R]:
        """A wrapper of `work` that measures each call."""

        def measured(*args: P.args, **kwargs: P.kwargs) -> R:
            begin = self._clock.now()
            result = work(*args, **kwargs)
            self._calls.append((begin, self._clock.now()))
            return result

        return measured

    @contextmanager
    def step(self) -> Iterator[None]:
        """A context for one step of the schedule."""
        self._calls.clear()
        begin = self._clock.now()
        yield
        between = self._clock.between
        self.durations.append(between(begin, self._clock.now()))
        self.compute_times.append(sum(between(*call) for call in self._calls))
        self.spans.append(between(self._calls[0][0], self._calls[-1][1]))
        duration, compute, span = self.durations[-1], self.compute_times[-1], self.spans[-1]
        measurements.phases.move(Phase.COMPUTE, Phase.COMMUNICATION, span - compute)
        measurements.phases.move(Phase.COMPUTE, Phase.WAIT, duration - span)


def stage_times(meter: Meter, grid: Grid) -> dict[str, float]:
    """Seconds per pipeline rank, summed over steps and averaged over replicas; equal on all workers.

    A step ends when the slowest rank of the replica is done. A rank computes, waits for its neighbors between its first
    and last computation, and idles before and after. The first step of an attempt is excluded, because it also sets up
    connections. A collective of all workers.
    """
    durations, compute_times, spans = (
        torch.tensor(times[1:], dtype=torch.float64) for times in (meter.durations, meter.compute_times, meter.spans)
    )
    slowest = durations.to(grid.device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX, group=grid.pipeline_group)
    whole = float(slowest.sum())
    compute, span = float(compute_times.sum()), float(spans.sum())
    table = torch.zeros(grid.ranks, 3, dtype=torch.float64, device=grid.device)
    table[grid.rank] = table.new_tensor([compute, span - compute, whole - span])
    dist.all_reduce(table)
    rows: list[list[float]] = (table / grid.replicas).tolist()
    kinds = ("compute", "wait", "idle")
    times = {f"stage_{rank}_{kind}_s": row[i] for rank, row in enumerate(rows) for i, kind in enumerate(kinds)}
    total = sum(map(sum, rows))
    return times | ({"bubble_measured": 1 - sum(row[0] for row in rows) / total} if total else {})
