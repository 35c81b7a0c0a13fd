# pyright: standard
"""Measures each pipeline rank's compute, wait and idle time, for every computation of the schedule."""

import time
from array import array
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

import torch
import torch.distributed as dist

from rolecall.kit.grid import Grid
from rolecall.kit.pipelining import COSTS, Kind, PassTimes
from rolecall.runtime.timeline import Timeline

P = ParamSpec("P")
R = TypeVar("R")
Moment = TypeVar("Moment")
_COMPUTE_METHODS: dict[str, Kind] = {
    "forward_one_chunk": "F",
    "backward_one_chunk": "B",
    "backward_weight_one_chunk": "W",
}
"""The methods of torch's stages that compute. Communication happens before and after them."""


class Stopwatch(Protocol, Generic[Moment]):
    """Records moments; reads the seconds between two of them later."""

    def now(self) -> Moment: ...

    def between(self, begin: Moment, end: Moment) -> float: ...

    def reached(self, moment: Moment) -> bool:
        """True if `between` does not have to wait for `moment`."""
        ...


class HostClock:
    """A clock for synchronous execution on the CPU."""

    def now(self) -> float:
        return time.perf_counter()

    def between(self, begin: float, end: float) -> float:
        return end - begin

    def reached(self, moment: float) -> bool:
        return True


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

    def reached(self, moment: torch.cuda.Event) -> bool:
        return moment.query()


def device_clock(device: torch.device) -> Stopwatch[Any]:
    """The clock of computations on this device."""
    return GpuClock() if device.type == "cuda" else HostClock()


class ComputeTime:
    """Adds up the time of computations, without waiting for a GPU."""

    def __init__(self, clock: Stopwatch[Any]) -> None:
        self._clock = clock
        self._calls: deque[tuple[Any, Any]] = deque()

    @contextmanager
    def computation(self) -> Generator[None]:
        """A context for one computation."""
        begin = self._clock.now()
        yield
        self._calls.append((begin, self._clock.now()))

    def take(self) -> float:
        """Seconds of the computations since the last call. The next call has those that a GPU has not completed yet."""
        seconds = 0.0
        while self._calls and self._clock.reached(self._calls[0][1]):
            seconds += self._clock.between(*self._calls.popleft())
        return seconds


class Bubble:
    """The share of the stages' time in steps without computation, measured from outside of the stages.

    The first step is excluded, because it also sets up the stages.
    """

    def __init__(self) -> None:
        self._started = False
        self._whole_s = self._compute_s = 0.0

    def add(self, duration_s: float, compute_s: Sequence[float]) -> None:
        """Add a step with its duration, and the compute time of each stage in it."""
        if self._started:
            self._whole_s += duration_s * len(compute_s)
            self._compute_s += sum(compute_s)
        self._started = True

    def take(self) -> float | None:
        """The share in the steps since the last call; None without any."""
        whole_s, compute_s = self._whole_s, self._compute_s
        self._whole_s = self._compute_s = 0.0
        # A GPU can complete computations of a step in the next one.
        return max(0.0, 1 - compute_s / whole_s) if whole_s else None


class _Call(NamedTuple):
    """A computation between two moments of the meter's clock."""

    begin: Any
    end: Any
    name: str
    stage: int | None = None
    micro_batch: int | None = None


class Meter:
    """Records for each step its duration, its compute time, and the span from first to last computation, in seconds.

    `passes` has the computations of all steps but the first, which also sets up connections. With a `timeline`, the
    meter records each computation there, too, and the waits around them.
    """

    def __init__(self, clock: Stopwatch[Any], timeline: Timeline | None = None) -> None:
        self._clock = clock
        self._timeline = timeline
        self._calls: list[_Call] = []
        self.durations, self.compute_times, self.spans = array("d"), array("d"), array("d")
        self.passes = PassTimes()

    def watch(self, stage: Any) -> None:
        """Measure the computations of a torch pipeline stage from now on."""
        for name, kind in _COMPUTE_METHODS.items():
            setattr(stage, name, self._watched(getattr(stage, name), kind, stage.stage_index))

    def timed(self, work: Callable[P, R], name: str = "compute") -> Callable[P, R]:
        """A wrapper of `work` that measures each call as a phase `name` of the micro-batch that was computed before."""

        def measured(*args: P.args, **kwargs: P.kwargs) -> R:
            begin = self._clock.now()
            result = work(*args, **kwargs)
            stage, micro_batch = (self._calls[-1].stage, self._calls[-1].micro_batch) if self._calls else (None, None)
            self._calls.append(_Call(begin, self._clock.now(), name, stage, micro_batch))
            return result

        return measured

    def _watched(self, work: Callable[..., R], kind: Kind, stage: int) -> Callable[..., R]:
        """The same for a method of a stage, whose first argument is the micro-batch."""

        def measured(micro_batch: int, *args: Any, **kwargs: Any) -> R:
            begin = self._clock.now()
            result = work(micro_batch, *args, **kwargs)
            halved = kind == "B" and not kwargs.get("full_backward", True)
            self._calls.append(_Call(begin, self._clock.now(), "I" if halved else kind, stage, micro_batch))
            return result

        return measured

    @contextmanager
    def step(self) -> Generator[None]:
        """A context for one step of the schedule."""
        self._calls.clear()
        begin = self._clock.now()
        yield
        between, end = self._clock.between, self._clock.now()
        self.durations.append(between(begin, end))
        times = [between(call.begin, call.end) for call in self._calls]
        self.compute_times.append(sum(times))
        self.spans.append(between(self._calls[0].begin, self._calls[-1].end))
        if len(self.durations) > 1:
            for call, seconds in zip(self._calls, times, strict=True):
                if call.stage is not None:
                    self.passes.add(call.stage, call.name, seconds)
        if self._timeline is not None:
            self._record(self._timeline, begin, end)

    def _record(self, timeline: Timeline, begin: Any, end: Any) -> None:
        """Record the computations and the waits for them, with the times of the device.

        Torch sends and receives in one operation, so that the time of sends is part of the waits.
        `end` has passed on the device, so that it is now by the timeline's clock.
        """
        between, now = self._clock.between, timeline.now()
        previous = now - between(begin, end)
        for call in self._calls:
            begin_s, end_s = now - between(call.begin, end), now - between(call.end, end)
            if begin_s > previous:
                timeline.record("wait", "wait", previous, begin_s, call.stage, call.micro_batch)
            timeline.record(call.name, "compute", begin_s, end_s, call.stage, call.micro_batch)
            previous = end_s
        if now > previous:
            timeline.record("wait", "wait", previous, now)


def stage_times(meter: Meter, grid: Grid, first: int = 0) -> dict[str, float]:
    """Seconds per pipeline rank, summed over the steps from `first` and averaged over replicas; equal on all workers.

    A step ends when the slowest rank of the replica is done. A rank computes, waits for its neighbors between its first
    and last computation, and idles before and after. The first step of an attempt is excluded, because it also sets up
    connections. A collective of all workers. Without other steps, there is no `bubble_measured`.
    """
    durations, compute_times, spans = (
        torch.tensor(times[max(first, 1) :], dtype=torch.float64)
        for times in (meter.durations, meter.compute_times, meter.spans)
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


def all_passes(meter: Meter, grid: Grid, stages: int) -> PassTimes:
    """The passes that all workers have measured through the `stages` of the model. A collective of all workers."""
    kinds, own, found = list(COSTS), meter.passes, PassTimes()
    table = torch.zeros(2, stages, len(kinds), dtype=torch.float64)
    for (stage, kind), seconds in own.seconds.items():
        table[:, stage, kinds.index(kind)] = table.new_tensor([seconds, own.counts[stage, kind]])
    table = table.to(grid.device)
    dist.all_reduce(table)
    sums: list[list[list[float]]] = table.tolist()
    for stage, kind in product(range(stages), kinds):
        seconds, count = (one[stage][kinds.index(kind)] for one in sums)
        if count:
            found.seconds[stage, kind], found.counts[stage, kind] = seconds, int(count)
    return found
