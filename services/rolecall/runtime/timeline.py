# pyright: reportPrivateUsage=false
"""Records what a worker does: phases such as a forward pass, a look-up or a wait for a peer.

The phases of recent steps are kept. The times of all phases of the main thread are summed by activity, each second
once. The costs are bounded: about a microsecond for each span, and the memory of `MAX_SPANS` spans. The phases don't
leave the process until a user requests them, or the worker ends.

Spans have the times of the host. On a GPU, whose work is asynchronous, a span around kernels therefore shows the time
in which the host launches them; what knows the times of the GPU, such as `kit.meter`, passes them to `record`.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TypeVar

from rolecall.spec.timeline import ACTIVITIES, MAX_SPANS, MAX_STEPS, Activity, Category, Span, Step, Window

Item = TypeVar("Item")
_MAX_THREADS = 1000
_WHOLE = ("checkpoint", "evaluation")
"""The categories whose phases contain the time of nested ones, such as an evaluation's look-ups."""
_SPAN_BYTES = 160
"""The approximate maximum of a span's size as JSON."""


class Timeline:
    """The phases of recent steps, and the main thread's time by activity.

    Any thread may record spans. The main thread creates the timeline and runs the steps.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        max_spans: int = MAX_SPANS,
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.step_count = 0
        """The number of steps so far."""
        self.on_step: Callable[[int], None] | None = None
        """Called at the start of each step with its number, in the thread that runs the steps."""
        self.now = clock
        """The clock of all times, in seconds."""
        self._wall_clock = wall_clock
        # Plain tuples with the fields of `Span` and `Step`, which are faster to create.
        self._spans: deque[tuple[Any, ...]] = deque(maxlen=max_spans)
        self._steps: deque[tuple[Any, ...]] = deque(maxlen=MAX_STEPS)
        self._recorded = 0
        self._step: int | None = None
        self._names: dict[int, str] = {}
        self._thread = threading.get_ident()
        self._seconds = dict.fromkeys(ACTIVITIES, 0.0)
        self._activity: tuple[Activity, float] = "other", clock()
        """The present activity and its begin, up to which `_seconds` counts."""

    @property
    def is_in_step(self) -> bool:
        return self._step is not None

    def span(
        self, name: str, category: Category = "compute", *, stage: int | None = None, micro_batch: int | None = None
    ) -> "_OpenSpan":
        """A context manager that records its body as a phase `name` (see `spec.timeline.NAME`) of this thread."""
        return _OpenSpan(self, name, category, stage, micro_batch)

    @contextmanager
    def step(self, number: int) -> Generator[None]:
        """A context manager for step `number`, counted from 1 in the job; call it always in the same thread."""
        begin = self._begin_step(number)
        try:
            yield
        finally:
            self._end_step(number, begin)

    def steps(self, batches: Iterable[Item], first: int) -> Iterator[Item]:
        """The batches, each with a step around the loop's body, from number `first`. Reading a batch is a span `data`.

        The step ends when the loop asks for the next batch or ends.
        """
        following, number = iter(batches), first
        while True:
            begin = self._begin_step(number)
            try:
                with self.span("data", "data"):
                    batch = next(following)
            except StopIteration:
                self._step = None
                self._switch("other", self.now())
                return
            try:
                yield batch
            finally:
                self._end_step(number, begin)
            number += 1

    def seconds(self) -> dict[Activity, float]:
        """The seconds of the main thread until now by activity. Callable in any thread.

        A nested phase is not part of the one around it, unless that is a checkpoint or an evaluation. The time of a
        step outside of spans is `compute`.
        """
        # In this order, and the opposite one in `_switch`: a reading in between lacks time, but has none twice.
        found = self._seconds.copy()
        activity, since = self._activity
        found[activity] += self.now() - since
        return found

    def window(self, max_bytes: int) -> Window:
        """The recorded steps and spans, the newest ones that take about `max_bytes` as JSON. Callable in any thread."""
        count = max(1, max_bytes // _SPAN_BYTES - 2 * MAX_STEPS)
        spans, steps = _copy(self._spans), _copy(self._steps)
        kept = sorted((Span(*span) for span in spans[-count:]), key=lambda span: span.begin_s)
        return Window(
            at=self._wall_clock(),
            clock_s=self.now(),
            steps=tuple(Step(*step) for step in steps),
            spans=tuple(kept),
            cut=self._recorded > len(kept),
        )

    def record(  # noqa: PLR0917 - called for each span, so without the cost of keywords
        self,
        name: str,
        category: Category,
        begin: float,
        end: float,
        stage: int | None = None,
        micro_batch: int | None = None,
    ) -> None:
        """Record a phase of this thread that is over. `begin` and `end` are times of `now`.

        In the main thread, its time moves from the present activity, which must have lasted since `begin`.
        """
        self._keep(name, category, begin, end, stage, micro_batch)
        present = self._activity[0]
        if present != category and present not in _WHOLE and threading.get_ident() == self._thread:
            self._seconds[present] -= end - begin
            self._seconds[category] += end - begin

    def _keep(  # noqa: PLR0917 - as `record`
        self, name: str, category: Category, begin: float, end: float, stage: int | None, micro_batch: int | None
    ) -> None:
        thread = threading.get_ident()
        name_of_thread = self._names.get(thread) or self._name(thread)
        self._recorded += 1
        self._spans.append((name, category, begin, end - begin, self._step, stage, micro_batch, name_of_thread))

    def _begin_step(self, number: int) -> float:
        if self.on_step is not None:
            self.on_step(number)
        self._step = number
        begin = self.now()
        self._switch("compute", begin)
        return begin

    def _end_step(self, number: int, begin: float) -> None:
        end = self.now()
        self._step = None
        self._switch("other", end)
        self._steps.append((number, begin, end - begin))
        self.step_count += 1

    def _switch(self, activity: Activity, now: float) -> None:
        """Begin an activity of the main thread. Changes nothing in another thread."""
        if threading.get_ident() == self._thread:
            before, since = self._activity
            self._activity = activity, now
            self._seconds[before] += now - since

    def _name(self, thread: int) -> str:
        name = "main" if thread == threading.main_thread().ident else f"thread-{len(self._names)}"
        if len(self._names) < _MAX_THREADS:  # Threads of a job's code can come and go without end.
            self._names[thread] = name
        return name


class _OpenSpan:
    """A span that is being recorded."""

    __slots__ = ("_before", "_begin", "_category", "_micro_batch", "_name", "_stage", "_timeline")

    def __init__(
        self, timeline: Timeline, name: str, category: Category, stage: int | None, micro_batch: int | None
    ) -> None:
        self._timeline = timeline
        self._name = name
        self._category: Category = category
        self._stage = stage
        self._micro_batch = micro_batch

    def __enter__(self) -> None:
        timeline = self._timeline
        self._begin = timeline.now()
        self._before: Activity = timeline._activity[0]
        if self._before not in _WHOLE:
            timeline._switch(self._category, self._begin)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        timeline, end = self._timeline, self._timeline.now()
        timeline._switch(self._before, end)
        timeline._keep(self._name, self._category, self._begin, end, self._stage, self._micro_batch)


def _copy(entries: deque[Item]) -> list[Item]:
    """The entries of a deque to which other threads append."""
    while True:
        with suppress(RuntimeError):  # It changed during the iteration.
            return list(entries)
