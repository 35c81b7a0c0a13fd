"""A worker's measurements of itself except its phases: counters and gauges. Its node reads them at every scrape.

Recording takes about a microsecond and does no I/O. A thread of its own writes the values, and the time by activity of
the worker's timeline, to a file once a second.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress

import torch

from rolecall.runtime.timeline import Timeline
from rolecall.spec import metric
from rolecall.spec.metric import WorkerMetric

_WRITE_EVERY_S = 1.0


class Measurements:
    """The values of the metrics in `spec.metric`, by metric and value of its label. Safe for threads."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._values: dict[tuple[str, str], float] = {}
        self._newest: dict[str, dict[str, float]] = {}

    def add(self, what: WorkerMetric, amount: float = 1.0, label: str = "") -> None:
        """Increase a counter."""
        key = what.name, label
        with self._lock:
            self._values[key] = self._values.get(key, 0.0) + amount

    @contextmanager
    def timed(self, what: WorkerMetric) -> Generator[None]:
        """Add the seconds of the body to a counter."""
        began = self._clock()
        yield
        self.add(what, self._clock() - began)

    def set(self, what: WorkerMetric, value: float) -> None:
        """Set a gauge."""
        with self._lock:
            self._values[what.name, ""] = value

    def values(self, timeline: Timeline) -> Mapping[str, Mapping[str, float]]:
        """All values, by name and label, and those of the worker's timeline.

        Times never decrease, although the timeline can move some to another activity afterwards.
        """
        with self._lock:
            found = self._values.copy()
        before = self._newest.get(metric.TIME.name, {})
        for activity, seconds in timeline.seconds().items():
            found[metric.TIME.name, activity] = max(seconds, before.get(activity, 0.0))
        if timeline.step_count:
            found[metric.STEPS.name, ""] = timeline.step_count
        if torch.cuda.is_initialized():
            found[metric.GPU_MEMORY.name, ""] = torch.cuda.memory_allocated()
            found[metric.GPU_MEMORY_PEAK.name, ""] = torch.cuda.max_memory_allocated()
        self._newest = {}
        for (name, label), value in found.items():
            self._newest.setdefault(name, {})[label] = value
        return self._newest


measurements = Measurements()
"""The measurements of this process, which runs one worker in its life. RPC handlers have no other access to them."""


def start_publishing(file: int, timeline: Timeline) -> None:
    """Write the measurements to an open file once a second in a separate thread."""

    def keep_publishing() -> None:
        while True:
            time.sleep(_WRITE_EVERY_S)
            with suppress(OSError):  # Of a full disk: the next write tries again.
                publish(file, timeline)

    threading.Thread(target=keep_publishing, name="measurements", daemon=True).start()


def publish(file: int, timeline: Timeline) -> None:
    """Replace the contents of an open file by the values as JSON, in one write."""
    text = json.dumps(measurements.values(timeline)).encode()
    os.pwrite(file, text, 0)
    os.ftruncate(file, len(text))
