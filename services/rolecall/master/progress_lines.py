"""The lines of progress streams: a job's progress, its events and the points of its series."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice, takewhile
from typing import Any

from rolecall.master.store.events import WorkerEvent
from rolecall.master.streams import MAX_LINE_BYTES, StreamKey
from rolecall.spec.job import Progress
from rolecall.spec.model import parse_untrusted
from rolecall.spec.report import MAX_METRICS, ProgressLine

Source = tuple[int, int]
"""A step and the negated rank of the worker that reported it, because at the same step the lowest rank counts."""
_NOTHING: Source = (-1, 0)
_NO_RANK = 1 << 62
_STEPS = frozenset({"first_step", "step"})
_COORDINATES = frozenset({"at", "step"})
_BATCH_LINES = 500
_BATCH_BYTES = 64 << 10
"""A batch ends with the line that reaches one of these limits, because other calls wait for its thread and writes."""


@dataclass(frozen=True, slots=True)
class Latest:
    """A job's newest progress and its source."""

    attempt: int
    rank: int
    progress: Progress
    sources: Mapping[str, Source] = field(default_factory=dict[str, Source])
    """The sources of the loss and the other metrics."""
    spent_by: int = _NO_RANK
    """The worker whose uses of time count: of those that report them, the one with the lowest rank."""


@dataclass(slots=True)
class LineBatch:
    """The content of consecutive lines of a stream."""

    end: int
    """The offset of the next line."""
    steps: list[ProgressLine] = field(default_factory=list[ProgressLine])
    first_step: datetime | None = None
    """The earliest time of a first step."""
    events: list[WorkerEvent] = field(default_factory=list[WorkerEvent])
    result: dict[str, Any] | None = None
    """The last result."""
    invalid: int = 0
    """The number of invalid lines, which are skipped."""
    error: Exception | None = None
    """The error of the first one."""


def parse(key: StreamKey, lines: Iterable[bytes], start: int) -> LineBatch:
    """The content of the first complete ones of `lines`, which start at offset `start`; bounded."""
    batch = LineBatch(start)
    for raw in islice(lines, _BATCH_LINES):
        if is_incomplete(raw) or batch.end - start >= _BATCH_BYTES:
            break
        try:
            line = parse_line(raw)
        except ValueError as error:
            batch.error = batch.error or error
            batch.invalid += max(1, raw.count(b"\n"))
        else:
            _add(batch, key, line)
        batch.end += len(raw)
    return batch


def _add(batch: LineBatch, key: StreamKey, line: ProgressLine) -> None:
    if line.kind in _STEPS:
        batch.steps.append(line)
    if line.kind == "first_step":
        batch.first_step = min(batch.first_step or line.at, line.at)
    elif line.kind == "event":
        origin = f"{key.job}/{key.attempt}/{key.rank}/{batch.end}"
        batch.events.append(WorkerEvent(origin, line.at, line.message or ""))
    elif line.kind == "result":
        batch.result = result(line)


def is_incomplete(raw: bytes) -> bool:
    """Return whether the end of a line is still missing."""
    return not raw.endswith(b"\n") and len(raw) < MAX_LINE_BYTES


def parse_line(raw: bytes) -> ProgressLine:
    """The line that `raw` contains. Raises `ValueError`."""
    if len(raw) >= MAX_LINE_BYTES:
        raise ValueError(f"it has {MAX_LINE_BYTES} bytes or more")
    return parse_untrusted(ProgressLine, raw)


def newest(latest: Latest | None, key: StreamKey, steps: Iterable[ProgressLine]) -> Latest | None:
    """A job's newest progress after further steps of one of its streams."""
    for line in steps:
        if latest is None or latest.attempt < key.attempt:
            latest = Latest(key.attempt, key.rank, Progress())
        if latest.attempt == key.attempt:
            latest = _with_spent(_after(latest, key, line), key, line)
    return latest


def _after(latest: Latest, key: StreamKey, line: ProgressLine) -> Latest:
    """The newest progress after a line of the same attempt.

    A line that is not newer can have values that no newer one had: the scores of one worker's evaluation often arrive
    after the next steps of another worker.
    """
    source = _source(latest, key, line)
    if is_newer(latest, key, line):
        rank, names, progress = key.rank, set(line.metrics), advance(latest.progress, line)
    elif names := {name for name in line.metrics if source > latest.sources.get(name, _NOTHING)}:
        news = _metrics(latest.progress, {name: line.metrics[name] for name in names})
        rank, progress = latest.rank, latest.progress.model_copy(update=news)
    else:
        return latest
    # What is not finite is not stored, and neither are names beyond the limit.
    stored = {name for name in names if name == "loss" or progress.metrics.get(name) == line.metrics[name]}
    sources = dict.fromkeys(stored, source)
    return replace(latest, rank=rank, progress=progress, sources={**latest.sources, **sources})


def _with_spent(latest: Latest, key: StreamKey, line: ProgressLine) -> Latest:
    # Always of one worker: each waits and calls for other times, and the figures of a job would go back and forth.
    if line.spent is None or key.rank > latest.spent_by:
        return latest
    return replace(latest, spent_by=key.rank, progress=latest.progress.model_copy(update={"spent": line.spent}))


def is_newer(before: Latest, key: StreamKey, line: ProgressLine) -> bool:
    """Return whether a line is newer: a later step, or the same step of a lower rank."""
    return key.attempt == before.attempt and _source(before, key, line) >= (before.progress.step, -before.rank)


def _source(before: Latest, key: StreamKey, line: ProgressLine) -> Source:
    """The source of a line; without a step of its own, it belongs to the newest one."""
    return (before.progress.step if line.step is None else line.step, -key.rank)


def advance(progress: Progress, line: ProgressLine) -> Progress:
    """The progress after a line, without its uses of time. Values that the line doesn't have stay unchanged."""
    reported = line.model_dump(include={"step", "steps", "epoch", "samples_per_s", "seconds_left"}, exclude_none=True)
    return progress.model_copy(update=reported | _metrics(progress, line.metrics))


def _metrics(progress: Progress, reported: Mapping[str, float]) -> dict[str, Any]:
    """The values of `progress` after those that a line reports under names of its own."""
    loss = reported.get("loss", progress.loss)
    others = {name: value for name, value in reported.items() if name != "loss" and math.isfinite(value)}
    metrics = dict(list((progress.metrics | others).items())[:MAX_METRICS])
    return {"loss": loss if loss is None or math.isfinite(loss) else None, "metrics": metrics}


def finite(metrics: dict[str, float]) -> dict[str, Any]:
    """`metrics` with None for values that are not finite, which JSON can't represent."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


def result(line: ProgressLine) -> dict[str, Any]:
    """A job's result from a `result` line; has `findings` only if the line has any."""
    findings = [finding.model_dump(mode="json") for finding in line.findings]
    return finite(line.metrics) | ({"findings": findings} if findings else {})


def steps_from(lines: Iterable[bytes], start: int, max_bytes: int) -> tuple[list[dict[str, Any]], int]:
    """The steps in the next complete lines, which begin at offset `start`, and where these lines end.

    Stops with the line that reaches `max_bytes`.
    """
    complete, end = list[bytes](), start
    for raw in takewhile(lambda raw: not is_incomplete(raw), lines):
        complete.append(raw)
        end += len(raw)
        if end - start >= max_bytes:
            break
    return [point(line) for line in plotted(complete)], end


def point(line: ProgressLine) -> dict[str, Any]:
    """The point of a step series for a line."""
    own = {"at": line.at, "step": line.step, "epoch": line.epoch, "samples_per_s": line.samples_per_s}
    return finite(line.metrics) | own  # A job's code may report any names.


def names_in(line: ProgressLine) -> set[str]:
    """The names of the values that a line adds to a series."""
    found = point(line).items() if _is_plotted(line) else ()
    return {name for name, value in found if value is not None} - _COORDINATES


def plotted(lines: Iterable[bytes]) -> Iterator[ProgressLine]:
    """The valid lines about steps with metrics."""
    for raw in lines:
        try:
            line = parse_line(raw)
        except ValueError:
            continue
        if _is_plotted(line):
            yield line


def _is_plotted(line: ProgressLine) -> bool:
    return line.kind in _STEPS and bool(line.metrics) and line.step is not None
