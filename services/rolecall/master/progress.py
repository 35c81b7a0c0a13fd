"""The reading of progress streams: a job's progress, result and events, and the points of step series."""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import islice, takewhile
from typing import Any

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, StatementError
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.edge.logs import about
from rolecall.master.store import attempts, events, jobs
from rolecall.master.store.database import Database
from rolecall.master.store.events import WorkerEvent
from rolecall.master.streams import MAX_LINE_BYTES, StreamKey, Streams
from rolecall.spec.job import Progress
from rolecall.spec.report import MAX_METRICS, ProgressLine
from rolecall.spec.visible import one_line

_STEPS = frozenset({"first_step", "step"})
_BATCH_LINES = 500
_BATCH_BYTES = 64 << 10
"""A batch ends with the line that reaches one of these limits, because other calls wait for its thread and writes."""
_ERROR_CHARS = 300
_Write = Callable[[AsyncConnection], Awaitable[None]]
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Latest:
    """A job's newest progress and its source."""

    attempt: int
    rank: int
    progress: Progress


class ProgressBook:
    """The newest progress of every running job.

    Steps are too frequent to store each one: they are kept in memory, and `flush` stores the newest. A restarted master
    reads the streams again from the start, which does not change what is stored.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._readers: dict[str, _JobReader] = {}

    async def ingest(self, database: Database, key: StreamKey) -> None:
        """Read the new lines of a stream of a job's current attempt.

        Only lines to be stored need the database. Concurrent calls for a stream share the work.
        """
        reader = self._readers.setdefault(key.job, _JobReader(self._streams))
        while await reader.read_batch(database, key):
            pass

    def of_job(self, job: str, attempt: int) -> Progress | None:
        """The newest progress of the attempt, or None if this master has read none."""
        latest = self._readers[job].latest if job in self._readers else None
        return latest.progress if latest and latest.attempt == attempt else None

    async def flush(self, database: Database) -> None:
        """Store new progress. After a failed commit, it is still new."""
        news = [
            (job, reader, latest)
            for job, reader in self._readers.items()
            if (latest := reader.latest) and latest is not reader.stored
        ]
        if not news:
            return
        async with database.write() as connection:
            for job, _, latest in news:
                await jobs.set_progress(connection, job, latest.progress)
        for _, reader, latest in news:
            reader.stored = latest

    def forget(self, job: str) -> None:
        """Remove the progress of a job whose attempt has ended from memory."""
        if reader := self._readers.pop(job, None):
            reader.log_skipped()

    def forget_others(self, jobs: Collection[str]) -> None:
        """Remove the progress of all other jobs: a late chunk may have brought that of an ended job back."""
        for job in [job for job in self._readers if job not in jobs]:
            self.forget(job)


class _JobReader:
    """Reads the streams of one job, one batch of lines at a time."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self.latest: Latest | None = None
        self.stored: Latest | None = None
        """The progress that is stored."""
        self._lock = asyncio.Lock()
        self._offsets: dict[StreamKey, int] = {}
        self._skipped: Counter[StreamKey] = Counter()
        self._has_all_events = False
        """True if the job can have no more events from its workers."""

    async def read_batch(self, database: Database, key: StreamKey) -> bool:
        """Read the next lines of a stream; return whether there were any."""
        async with self._lock:
            start = self._offsets.get(key, 0)
            batch, latest = await asyncio.to_thread(self._read, key, start)
            await self._store(database, key, batch)
            if batch.error is not None:
                self._skip(key, batch.error, batch.invalid)
            self.latest = latest
            # The lines before this offset are committed and need not be read again.
            self._offsets[key] = batch.end
            return batch.end > start

    def log_skipped(self) -> None:
        """Log the number of skipped lines of each stream, of which only the first was logged."""
        for key, count in self._skipped.items():
            if count > 1:
                _LOG.warning("%d more progress lines were skipped", count - 1, extra=_about_skipped_line(key))

    def _read(self, key: StreamKey, start: int) -> "tuple[LineBatch, Latest | None]":
        batch = parse(key, self._streams.lines(key, start), start)
        return batch, newest(self.latest, key, batch.steps)

    async def _store(self, database: Database, key: StreamKey, batch: "LineBatch") -> None:
        """Store what the database needs. Content that it rejects is skipped, because a retry would not change that.

        Otherwise the stream would never advance, and the node would not report the worker's end.
        """
        reported = [] if self._has_all_events else batch.events
        writes: list[_Write] = []
        if batch.first_step is not None:
            writes.append(partial(attempts.set_first_step, job=key.job, number=key.attempt, at=batch.first_step))
        if batch.result is not None:
            writes.append(partial(jobs.set_result, job=key.job, attempt=key.attempt, result=batch.result))
        if not reported and not writes:
            return
        async with database.write() as connection:
            if reported and await _rejection(connection, partial(self._add_events, key=key, reported=reported)):
                writes += [partial(self._add_events, key=key, reported=[one]) for one in reported]
            for write in writes:
                if error := await _rejection(connection, write):
                    self._skip(key, error)

    async def _add_events(self, connection: AsyncConnection, key: StreamKey, reported: list[WorkerEvent]) -> None:
        self._has_all_events = await events.add_once(connection, key.job, key.attempt, reported)

    def _skip(self, key: StreamKey, error: Exception, count: int = 1) -> None:
        """Count skipped lines of a stream, and log the first."""
        if key not in self._skipped:
            reason = one_line(str(error)[:_ERROR_CHARS])
            _LOG.warning("a progress line is not legal and is skipped: %s", reason, extra=_about_skipped_line(key))
        self._skipped[key] += count


async def _rejection(connection: AsyncConnection, write: _Write) -> Exception | None:
    """The error with which the database rejects what `write` stores, or None if it is stored."""
    try:
        async with connection.begin_nested():
            await write(connection)
    except (StatementError, OverflowError) as error:
        if isinstance(error, DBAPIError) and not isinstance(error, DataError | IntegrityError):
            raise  # the database fails, not the line
        return error
    return None


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
            batch.invalid += 1
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
    return ProgressLine.model_validate_json(raw)


def _about_skipped_line(key: StreamKey) -> dict[str, object]:
    return about("progress_line_skipped", job=key.job, attempt=key.attempt, rank=key.rank)


def newest(latest: Latest | None, key: StreamKey, steps: Iterable[ProgressLine]) -> Latest | None:
    """A job's newest progress after further steps of one of its streams."""
    for line in steps:
        if latest is None or latest.attempt < key.attempt:
            latest = Latest(key.attempt, key.rank, Progress())
        if is_newer(latest, key, line):
            latest = Latest(key.attempt, key.rank, advance(latest.progress, line))
    return latest


def is_newer(before: Latest, key: StreamKey, line: ProgressLine) -> bool:
    """Return whether a line is newer: a later step, or the same step of a lower rank."""
    step = before.progress.step if line.step is None else line.step
    return key.attempt == before.attempt and (step, -key.rank) >= (before.progress.step, -before.rank)


def advance(progress: Progress, line: ProgressLine) -> Progress:
    """The progress after a line. Values that the line doesn't have stay unchanged."""
    reported = line.model_dump(include={"step", "steps", "epoch", "samples_per_s", "seconds_left"}, exclude_none=True)
    reported |= {"spent": line.spent} if line.spent else {}
    loss = line.metrics.get("loss", progress.loss)
    others = {name: value for name, value in line.metrics.items() if name != "loss" and math.isfinite(value)}
    metrics = dict(list((progress.metrics | others).items())[:MAX_METRICS])
    news = {"loss": loss if loss is None or math.isfinite(loss) else None, "metrics": metrics}
    return progress.model_copy(update=reported | news)


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


def plotted(lines: Iterable[bytes]) -> Iterator[ProgressLine]:
    """The valid lines about steps with metrics."""
    for raw in lines:
        try:
            line = parse_line(raw)
        except ValueError:
            continue
        if line.kind in _STEPS and line.metrics and line.step is not None:
            yield line
