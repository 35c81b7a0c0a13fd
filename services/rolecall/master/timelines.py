"""Timelines of gangs: aligned clocks, and Chrome's trace format. Pure."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rolecall.master.store.records import WorkerRecord
from rolecall.spec.inspection import ClockReading, Silent, TimelineDocument, WorkerTimeline
from rolecall.spec.role import Role
from rolecall.spec.timeline import Span, Step, Window

_LATEST_S = 250_000_000_000.0
"""A moment in the year 9892. The clocks of workers are not to be trusted."""


@dataclass(frozen=True, slots=True)
class RecordedWindow:
    """The window of a worker, and what is known about its clock."""

    worker: WorkerRecord
    window: Window
    clock: ClockReading | None = None
    """Relative to the master; None if the worker has ended."""


def timeline(
    job: str,
    attempt: int,
    recorded: Sequence[RecordedWindow],
    silent: Sequence[Silent],
    machines: Mapping[str, str],
    *,
    now: datetime,
    steps: int | None = None,
    live: bool,
) -> TimelineDocument:
    """The newest `steps` steps that all workers have completed, on one clock, and what happened meanwhile.

    `machines` has the boot id of each node: nodes of one machine share its clock. Machines are aligned with the first
    worker's by their clocks' offsets to the master, or by their wall clocks. Without windows, the document is of `now`.
    """
    shifts = _shifts(recorded, machines)
    shown = list(zip(recorded, _newest(recorded, steps, shifts), strict=True))
    begins = [step.begin_s + shifts[one.worker.rank][0] for one, window in shown for step in window.steps]
    begins = begins or [span.begin_s + shifts[one.worker.rank][0] for one, window in shown for span in window.spans]
    zero = min(begins, default=0.0)
    at = _moment(_wall_offset(recorded[0].window) + zero) if recorded else now
    return TimelineDocument(
        job=job,
        attempt=attempt,
        live=live,
        at=at,
        workers=tuple(
            _shifted(one, window, shifts[one.worker.rank][0] - zero, shifts[one.worker.rank][1])
            for one, window in shown
        ),
        silent=tuple(silent),
    )


def newest_spans(window: Window, count: int) -> Window:
    """The window with at most its newest `count` spans."""
    if len(window.spans) <= count:
        return window
    return window.model_copy(update={"spans": window.spans[-count:], "cut": True})


def silent(worker: WorkerRecord, reason: str) -> Silent:
    """A worker without an answer."""
    return Silent(rank=worker.rank, role=worker.role, role_rank=worker.role_rank, node=worker.node, reason=reason)


def without_schedule(members: Sequence[WorkerRecord], *, live: bool) -> str:
    """The reason why there is no picture of a schedule, and the remedy."""
    if not any(member.role is Role.STAGE for member in members):
        return "has no pipeline; the format svg shows every workload"
    if live:
        return (
            "shows no complete step of a schedule; try again after its next step, or use the format svg, which shows "
            "every workload (with protocol tutorial, torch runs the backward passes, so there is no schedule)"
        )
    return "has left no complete step of a schedule; the format svg shows what its workers have left"


def trace(document: TimelineDocument) -> str:
    """The document as JSON in Chrome's trace event format, which Perfetto and `chrome://tracing` open.

    Each worker is a process, and each of its threads is a thread. Thread 0 has the steps. A worker can keep spans from
    before its earliest step; times count from the first event, because viewers expect none that is negative.
    """
    zero = min((span.begin_s for worker in document.workers for span in worker.spans), default=0.0)
    zero = min(zero, 0.0)  # The earliest step begins at 0.
    # One by one: a call for all events would hold Python's lock, and with it the event loop, for seconds.
    events = ",".join(json.dumps(event) for worker in document.workers for event in _events(worker, zero))
    uncertainty = {_name(one): one.clock_uncertainty_s for one in document.workers}
    silent_ones = {_name(one): one.reason for one in document.silent}
    at = _moment(document.at.timestamp() + zero)
    other = {"job": document.job, "attempt": document.attempt, "at": at.isoformat()}
    other |= {"clock_uncertainty_s": uncertainty, "silent": silent_ones}
    return f'{{"traceEvents":[{events}],"displayTimeUnit":"ms","otherData":{json.dumps(other)}}}'


def _events(worker: WorkerTimeline, zero: float) -> Iterator[dict[str, Any]]:
    rank = worker.rank
    yield _metadata("process_name", rank, 0, {"name": f"{_name(worker)} ({worker.node})"})
    yield _metadata("process_sort_index", rank, 0, {"sort_index": rank})
    threads = {name: number for number, name in enumerate(sorted({span.thread for span in worker.spans}), start=1)}
    for thread, number in {"steps": 0, **threads}.items():
        yield _metadata("thread_name", rank, number, {"name": thread})
    for step in worker.steps:
        yield {"ph": "X", "name": f"step {step.number}", "cat": "step", "pid": rank, "tid": 0, **_times(step, zero)}
    for span in worker.spans:
        known = {"step": span.step, "stage": span.stage, "micro_batch": span.micro_batch}
        yield {
            "ph": "X",
            "name": span.name if span.micro_batch is None else f"{span.name} {span.micro_batch}",
            "cat": span.category,
            "pid": rank,
            "tid": threads[span.thread],
            "args": {key: value for key, value in known.items() if value is not None},
            **_times(span, zero),
        }


def _name(worker: WorkerTimeline | Silent) -> str:
    return f"{worker.role}-{worker.role_rank}"


def _times(one: Step | Span, zero: float) -> dict[str, float]:
    """Begin, counted from `zero`, and duration in microseconds."""
    return {"ts": round((one.begin_s - zero) * 1e6, 3), "dur": round(one.seconds * 1e6, 3)}


def _metadata(name: str, process: int, thread: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": process, "tid": thread, "args": arguments}


def _shifts(recorded: Sequence[RecordedWindow], machines: Mapping[str, str]) -> dict[int, tuple[float, float | None]]:
    """The seconds to add to each worker's times, by rank, with the uncertainty.

    The reference is the clock of the first worker's machine. A machine with several workers uses its best reading.
    """
    if not recorded:
        return {}
    own = {one.worker.rank: machines.get(one.worker.node, one.worker.node) for one in recorded}
    readings: dict[str, ClockReading] = {}
    for one in recorded:
        machine, best = own[one.worker.rank], readings.get(own[one.worker.rank])
        if one.clock is not None and (best is None or one.clock.uncertainty_s < best.uncertainty_s):
            readings[machine] = one.clock
    first = recorded[0]
    home, wall = own[first.worker.rank], _wall_offset(first.window)
    shifts: dict[int, tuple[float, float | None]] = {}
    for one in recorded:
        machine = own[one.worker.rank]
        if machine == home:
            shifts[one.worker.rank] = 0.0, 0.0
        elif machine in readings and home in readings:
            here, there = readings[machine], readings[home]
            uncertainty = here.uncertainty_s + there.uncertainty_s
            shifts[one.worker.rank] = here.offset_s - there.offset_s, uncertainty
        else:
            shifts[one.worker.rank] = _wall_offset(one.window) - wall, None
    return shifts


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(min(max(0.0, seconds), _LATEST_S), UTC)


def _wall_offset(window: Window) -> float:
    return window.at.timestamp() - window.clock_s


def _newest(
    recorded: Sequence[RecordedWindow], steps: int | None, shifts: Mapping[int, tuple[float, float | None]]
) -> list[Window]:
    """The windows with only the newest steps that all workers have completed, and the spans of this time.

    Workers answer at different moments, so that one can be ahead. Workers without steps show their spans alone.
    """
    numbers = [one.window.steps[-1].number for one in recorded if one.window.steps]
    if steps is None or not numbers:
        return [one.window for one in recorded]
    last = min(numbers)
    kept = [[step for step in one.window.steps if last - steps < step.number <= last] for one in recorded]
    times = [
        (step.begin_s + shifts[one.worker.rank][0], step.seconds)
        for one, own in zip(recorded, kept, strict=True)
        for step in own
    ]
    begin_s = min(begin for begin, _ in times)
    end_s = max(begin + seconds for begin, seconds in times)
    windows: list[Window] = []
    for one, own in zip(recorded, kept, strict=True):
        shift_s = shifts[one.worker.rank][0]
        spans = tuple(
            span
            for span in one.window.spans
            if (span.step is None or last - steps < span.step <= last)
            and span.begin_s + shift_s < end_s
            and span.begin_s + span.seconds + shift_s > begin_s
        )
        windows.append(one.window.model_copy(update={"steps": tuple(own), "spans": spans}))
    return windows


def _shifted(one: RecordedWindow, window: Window, shift_s: float, uncertainty_s: float | None) -> WorkerTimeline:
    worker = one.worker
    # Without a validation: the window is valid, and thousands of spans take long.
    return WorkerTimeline.model_construct(
        rank=worker.rank,
        role=worker.role,
        role_rank=worker.role_rank,
        node=worker.node,
        clock_uncertainty_s=uncertainty_s,
        cut=window.cut,
        steps=tuple(step._replace(begin_s=step.begin_s + shift_s) for step in window.steps),
        spans=tuple(span._replace(begin_s=span.begin_s + shift_s) for span in window.spans),
    )
