"""The reading of progress streams: a job's progress, result, events and step series."""

import asyncio
import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, StatementError
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.edge.logs import about
from rolecall.master.store import attempts, events, jobs
from rolecall.master.store.database import Database
from rolecall.master.streams import StreamKey, Streams
from rolecall.spec.job import Progress
from rolecall.spec.report import ProgressLine

_STORED = frozenset({"first_step", "event", "result"})
_STEPS = frozenset({"first_step", "step"})
_METRICS = 1000
"""The maximum number of metrics in a job's progress, because each line can have others."""
_log = logging.getLogger(__name__)


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
        self._parsed: dict[StreamKey, int] = {}
        self._latest: dict[str, Latest] = {}
        self._unstored: set[str] = set()

    async def ingest(self, database: Database, key: StreamKey) -> None:
        """Read the new lines of a stream of a job's current attempt.

        Only lines to be stored need the database. Reading lines twice changes nothing.
        """
        start = self._parsed.get(key, 0)
        while chunk := await asyncio.to_thread(self._streams.read, key, start):
            lines = list(parse(key, chunk, start))
            if kept := [(offset, line) for offset, line in lines if line.kind in _STORED]:
                async with database.write() as connection:
                    for offset, line in kept:
                        await _store_if_possible(connection, key, offset, line)
            for _, line in lines:
                if line.kind in _STEPS:
                    self._step(key, line)
            start += len(chunk)
            # The lines before this offset are committed and need not be read again.
            self._parsed[key] = max(start, self._parsed.get(key, 0))

    def of_job(self, job: str, attempt: int) -> Progress | None:
        """The newest progress of the attempt, or None if this master has read none."""
        latest = self._latest.get(job)
        return latest.progress if latest and latest.attempt == attempt else None

    async def flush(self, database: Database) -> None:
        """Store new progress. After a failed commit, it is still new."""
        news = {job: self._latest[job] for job in self._unstored}
        if not news:
            return
        async with database.write() as connection:
            for job, latest in news.items():
                await jobs.set_progress(connection, job, latest.progress)
        self._unstored -= {job for job, latest in news.items() if self._latest.get(job) is latest}

    def forget(self, job: str) -> None:
        """Remove the progress of a job whose attempt has ended from memory."""
        self._latest.pop(job, None)
        self._unstored.discard(job)
        self._parsed = {key: offset for key, offset in self._parsed.items() if key.job != job}

    def _step(self, key: StreamKey, line: ProgressLine) -> None:
        before = self._latest.get(key.job)
        if before is None or before.attempt < key.attempt:
            before = Latest(key.attempt, key.rank, Progress())
        if is_newer(before, key, line):
            self._latest[key.job] = Latest(key.attempt, key.rank, advance(before.progress, line))
            self._unstored.add(key.job)


async def _store_if_possible(connection: AsyncConnection, key: StreamKey, offset: int, line: ProgressLine) -> None:
    """Store a line, or skip it if the database rejects its content, which a retry would not change.

    Otherwise the stream would never advance, and the node would not report the worker's end.
    """
    try:
        async with connection.begin_nested():
            await _store(connection, key, offset, line)
    except (StatementError, OverflowError) as error:
        if isinstance(error, DBAPIError) and not isinstance(error, DataError | IntegrityError):
            raise  # the database fails, not the line
        _log.warning("a progress line can't be stored and is skipped: %s", error, extra=_about_skipped_line(key))


async def _store(connection: AsyncConnection, key: StreamKey, offset: int, line: ProgressLine) -> None:
    match line.kind:
        case "first_step":
            await attempts.set_first_step(connection, key.job, key.attempt, line.at)
        case "event":
            origin = f"{key.job}/{key.attempt}/{key.rank}/{offset}"
            await events.add_once(connection, key.job, line.at, line.message or "", attempt=key.attempt, origin=origin)
        case "result":
            await jobs.set_result(connection, key.job, key.attempt, result(line))
        case "step" | "forked" | "rendezvous" | "joined":
            pass  # `_latest` has the steps, and the node's report the others.


def parse(key: StreamKey, chunk: bytes, start: int) -> Iterator[tuple[int, ProgressLine]]:
    """The lines of `chunk` with their offsets in the stream. Invalid lines are logged and skipped."""
    for raw in chunk.splitlines(keepends=True):
        try:
            yield start, ProgressLine.model_validate_json(raw)
        except ValidationError as error:
            _log.warning("a progress line is not legal and is skipped: %s", error, extra=_about_skipped_line(key))
        start += len(raw)


def _about_skipped_line(key: StreamKey) -> dict[str, object]:
    return about("progress_line_skipped", job=key.job, attempt=key.attempt, rank=key.rank)


def is_newer(before: Latest, key: StreamKey, line: ProgressLine) -> bool:
    """Return whether a line is newer: a later step, or the same step of a lower rank."""
    step = before.progress.step if line.step is None else line.step
    return key.attempt == before.attempt and (step, -key.rank) >= (before.progress.step, -before.rank)


def advance(progress: Progress, line: ProgressLine) -> Progress:
    """The progress after a line. Values that the line doesn't have stay unchanged."""
    reported = line.model_dump(include={"step", "steps", "epoch", "samples_per_s", "seconds_left"}, exclude_none=True)
    loss = line.metrics.get("loss", progress.loss)
    others = {name: value for name, value in line.metrics.items() if name != "loss" and math.isfinite(value)}
    metrics = dict(list((progress.metrics | others).items())[:_METRICS])
    news = {"loss": loss if loss is None or math.isfinite(loss) else None, "metrics": metrics}
    return progress.model_copy(update=reported | news)


def finite(metrics: dict[str, float]) -> dict[str, Any]:
    """`metrics` with None for values that are not finite, which JSON can't represent."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


def result(line: ProgressLine) -> dict[str, Any]:
    """A job's result from a `result` line; has `findings` only if the line has any."""
    findings = [finding.model_dump(mode="json") for finding in line.findings]
    return finite(line.metrics) | ({"findings": findings} if findings else {})


def series(key: StreamKey, lines: Iterable[bytes], max_points: int) -> list[dict[str, Any]]:
    """The steps of one worker's progress stream, thinned evenly to about `max_points`; the last one stays.

    Holds a few times `max_points` lines in memory, however many there are.
    """
    kept, last, stride = list[ProgressLine](), None, 1
    steps = (line for raw in lines for _, line in parse(key, raw, 0) if line.kind in _STEPS and line.metrics)
    for place, line in enumerate(steps):
        last = line
        if place % stride == 0:
            kept.append(line)
        if len(kept) >= 4 * max_points:
            kept, stride = kept[::2], 2 * stride
    if last is not None and kept[-1] is not last:
        kept.append(last)
    thin = max(1, math.ceil(len(kept) / max_points))
    return [
        {"at": line.at, "step": line.step, "epoch": line.epoch, "samples_per_s": line.samples_per_s}
        | finite(line.metrics)
        for line in kept[(len(kept) - 1) % thin :: thin]
    ]
