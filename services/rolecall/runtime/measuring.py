"""What a worker records about itself: the phases of its main thread, and counters. Its node reads them at every scrape.

Recording takes about a microsecond and does no I/O. A thread of its own writes the values to a file once a second.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

from rolecall.spec import metric
from rolecall.spec.metric import Phase, WorkerMetric

_WRITE_EVERY_S = 1.0
P = ParamSpec("P")
R = TypeVar("R")


class Phases:
    """Attributes the time of the thread that created it to one phase at a time."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._thread = threading.get_ident()
        self._seconds = dict.fromkeys(Phase, 0.0)
        self._current = (Phase.OTHER, clock())

    def switch(self, phase: Phase) -> Phase:
        """Start `phase`; returns the previous one. In another thread, it changes nothing."""
        before, since = self._current
        if threading.get_ident() == self._thread and phase is not before:
            now = self._clock()
            # In this order, and the opposite one in `seconds`: a reading in between lacks time, but has none twice.
            self._current = phase, now
            self._seconds[before] += now - since
        return before

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """Attribute the body to `phase`, then continue the previous one."""
        before = self.switch(phase)
        try:
            yield
        finally:
            self.switch(before)

    def move(self, source: Phase, target: Phase, seconds: float) -> None:
        """Attribute `seconds` of `source`, which was measured in another way, to `target`."""
        self._seconds[source] -= seconds
        self._seconds[target] += seconds

    def seconds(self) -> dict[Phase, float]:
        """The seconds of each phase until now."""
        found = self._seconds.copy()
        phase, since = self._current
        found[phase] += self._clock() - since
        return found


class Measurements:
    """The values of the metrics in `spec.metric`, by metric and value of its label. Safe for threads."""

    def __init__(self) -> None:
        self.begin()
        self._lock = threading.Lock()
        self._values: dict[tuple[str, str], float] = {}
        self._newest: dict[str, dict[str, float]] = {}

    def begin(self) -> None:
        """Start the clock of the phases in this thread, which is the worker's main thread."""
        self.phases = Phases()

    def add(self, what: WorkerMetric, amount: float = 1.0, label: str = "") -> None:
        """Increase a counter."""
        key = what.name, label
        with self._lock:
            self._values[key] = self._values.get(key, 0.0) + amount

    def set(self, what: WorkerMetric, value: float, label: str = "") -> None:
        """Set a gauge."""
        with self._lock:
            self._values[what.name, label] = value

    def values(self) -> Mapping[str, Mapping[str, float]]:
        """All values, by name and label. Phases never decrease, although another thread may be switching them."""
        with self._lock:
            found = self._values.copy()
        before = self._newest.get(metric.PHASE_SECONDS.name, {})
        for phase, seconds in self.phases.seconds().items():
            found[metric.PHASE_SECONDS.name, phase] = max(seconds, before.get(phase, 0.0))
        if torch.cuda.is_initialized():
            found[metric.GPU_MEMORY.name, ""] = torch.cuda.memory_allocated()
            found[metric.GPU_MEMORY_PEAK.name, ""] = torch.cuda.max_memory_allocated()
        self._newest = {}
        for (name, label), value in found.items():
            self._newest.setdefault(name, {})[label] = value
        return self._newest


measurements = Measurements()
"""The measurements of this process, which runs one worker in its life. RPC handlers have no other access to them."""


def measured_step(step: Callable[P, R]) -> Callable[P, R]:
    """A step that is counted, and whose time is compute unless its body names other phases."""

    @wraps(step)
    def measured(*args: P.args, **kwargs: P.kwargs) -> R:
        with measurements.phases.during(Phase.COMPUTE):
            result = step(*args, **kwargs)
        measurements.add(metric.STEPS)
        return result

    return measured


def start_publishing(file: int) -> None:
    """Write the measurements to an open file once a second in a separate thread."""

    def keep_publishing() -> None:
        while True:
            time.sleep(_WRITE_EVERY_S)
            with suppress(OSError):  # Of a full disk: the next write tries again.
                publish(file)

    threading.Thread(target=keep_publishing, name="measurements", daemon=True).start()


def publish(file: int) -> None:
    """Replace the contents of an open file by the values as JSON, in one write."""
    text = json.dumps(measurements.values()).encode()
    os.pwrite(file, text, 0)
    os.ftruncate(file, len(text))
