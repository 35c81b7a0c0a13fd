"""Records what a worker does in its recent steps: phases such as a forward pass, a look-up or a wait for a peer.

The costs are bounded: about a microsecond for each span, and the memory of `MAX_SPANS` spans. Nothing leaves the
process until a user requests it, or the worker ends.

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

from rolecall.spec.timeline import CATEGORIES, MAX_SPANS, MAX_STEPS, Category, Span, Step, Window

Item = TypeVar("Item")
_MAX_THREADS = 1000
_SPAN_BYTES = 160
"""The approximate maximum of a span's size as JSON."""


class Timeline:
    """The phases of recent steps. Any thread may record spans; one thread runs the steps."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter, max_spans: int = MAX_SPANS) -> None:
        self.totals: dict[Category, float] = dict.fromkeys(CATEGORIES, 0.0)
        """Seconds by category in all steps so far, in the thread that runs them. A nested span's time counts only
        once, for its own category. The rest of `step_seconds` is in no span."""
        self.step_seconds = 0.0
        """The duration of all steps so far."""
        self.step_count = 0
        """The number of steps so far."""
        self.on_step: Callable[[int], None] | None = None
        """Called at the start of each step with its number, in the thread that runs the steps."""
        self._clock = clock
        # Plain tuples with the fields of `Span` and `Step`, which are faster to create.
        self._spans: deque[tuple[Any, ...]] = deque(maxlen=max_spans)
        self._steps: deque[tuple[Any, ...]] = deque(maxlen=MAX_STEPS)
        self._recorded = 0
        self._step: int | None = None
        self._step_thread: int | None = None
        self._open: dict[int, _OpenSpan] = {}
        self._names: dict[int, str] = {}

    @property
    def is_in_step(self) -> bool:
        """True during a step."""
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
                return
            try:
                yield batch
            finally:
                self._end_step(number, begin)
            number += 1

    def window(self, max_bytes: int) -> Window:
        """The recorded steps and spans, the newest ones that take about `max_bytes` as JSON. Callable in any thread."""
        count = max(1, max_bytes // _SPAN_BYTES - 2 * MAX_STEPS)
        spans, steps = _copy(self._spans), _copy(self._steps)
        kept = sorted((Span(*span) for span in spans[-count:]), key=lambda span: span.begin_s)
        return Window(
            at=datetime.now(UTC),
            clock_s=self._clock(),
            steps=tuple(Step(*step) for step in steps),
            spans=tuple(kept),
            cut=self._recorded > len(kept),
        )

    def record(  # noqa: PLR0917 - as in `Span`
        self,
        name: str,
        category: Category,
        begin: float,
        end: float,
        stage: int | None = None,
        micro_batch: int | None = None,
    ) -> None:
        """Record a phase of this thread that is over. `begin` and `end` are times of `time.perf_counter`."""
        thread = threading.get_ident()
        if thread in self._open:
            self._open[thread].inner_s += end - begin
        self._count(thread, category, end - begin)
        self._append(name, category, begin, end, stage, micro_batch, thread)

    def _begin_step(self, number: int) -> float:
        self._step_thread = threading.get_ident()
        if self.on_step is not None:
            self.on_step(number)
        self._step = number
        return self._clock()

    def _end_step(self, number: int, begin: float) -> None:
        seconds = self._clock() - begin
        self._step = None
        self._steps.append((number, begin, seconds))
        self.step_seconds += seconds
        self.step_count += 1

    def _append(  # noqa: PLR0917 - one call for each span, so without the cost of keywords
        self,
        name: str,
        category: Category,
        begin: float,
        end: float,
        stage: int | None,
        micro_batch: int | None,
        thread: int,
    ) -> None:
        self._recorded += 1
        thread_name = self._names.get(thread) or self._name(thread)
        self._spans.append((name, category, begin, end - begin, self._step, stage, micro_batch, thread_name))

    def _count(self, thread: int, category: Category, seconds: float) -> None:
        if thread == self._step_thread and self._step is not None:
            self.totals[category] += seconds

    def _name(self, thread: int) -> str:
        name = "main" if thread == threading.main_thread().ident else f"thread-{len(self._names)}"
        if len(self._names) < _MAX_THREADS:  # Threads of a job's code can come and go without end.
            self._names[thread] = name
        return name


class _OpenSpan:
    """A span that is being recorded."""

    __slots__ = ("_begin", "_category", "_micro_batch", "_name", "_outer", "_stage", "_thread", "_timeline", "inner_s")

    def __init__(
        self, timeline: Timeline, name: str, category: Category, stage: int | None, micro_batch: int | None
    ) -> None:
        self._timeline = timeline
        self._name = name
        self._category: Category = category
        self._stage = stage
        self._micro_batch = micro_batch

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        self.inner_s = 0.0
        timeline = self._timeline
        self._outer = timeline._open.get(self._thread)
        timeline._open[self._thread] = self
        self._begin = timeline._clock()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        timeline, thread, outer = self._timeline, self._thread, self._outer
        end = timeline._clock()
        if outer is None:
            timeline._open.pop(thread, None)
        else:
            timeline._open[thread] = outer
            outer.inner_s += end - self._begin
        timeline._count(thread, self._category, end - self._begin - self.inner_s)
        timeline._append(self._name, self._category, self._begin, end, self._stage, self._micro_batch, thread)


def _copy(entries: deque[Item]) -> list[Item]:
    """The entries of a deque to which other threads append."""
    while True:
        with suppress(RuntimeError):  # It changed during the iteration.
            return list(entries)
