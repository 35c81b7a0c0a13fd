"""The progress of running jobs, read from the streams of their workers."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from functools import partial

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, StatementError
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.logs import OncePerReason, about
from rolecall.master.progress_lines import Latest, LineBatch, newest, parse
from rolecall.master.series_names import SeriesNames
from rolecall.master.store import attempts, events, jobs
from rolecall.master.store.database import Database
from rolecall.master.store.events import WorkerEvent
from rolecall.master.streams import StreamKey, Streams
from rolecall.spec.job import Progress
from rolecall.spec.redaction import redact_text
from rolecall.spec.visible import one_line

_ERROR_CHARS = 300
_Write = Callable[[AsyncConnection], Awaitable[None]]
_LOG = logging.getLogger(__name__)


class ProgressBook:
    """The newest progress of every running job.

    Steps are too frequent to store each one: they are kept in memory, and `flush` stores the newest. A restarted master
    reads all streams of a job again from the start before it has new progress, because what is stored must not go back.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._readers: dict[str, _JobReader] = {}

    async def ingest(self, database: Database, key: StreamKey) -> bool:
        """Read the new lines of a stream of a job's current attempt. Returns whether its first step was among them.

        The first call for a job reads all streams of the attempt. Only lines to be stored need the database. Concurrent
        calls for a stream share the work.
        """
        reader = self._readers.setdefault(key.job, _JobReader(self._streams))
        has_first_step = await reader.begin(database, key)
        return await reader.read(database, key) or has_first_step

    def of_job(self, job: str, attempt: int) -> Progress | None:
        """The newest progress of the attempt, or None if this master has read none."""
        latest = self._readers[job].newest if job in self._readers else None
        return latest.progress if latest and latest.attempt == attempt else None

    async def flush(self, database: Database) -> None:
        """Store new progress. After a failed commit, it is still new."""
        news = [
            (job, reader, latest)
            for job, reader in self._readers.items()
            if (latest := reader.newest) and latest is not reader.stored
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
        self.is_complete = False
        """False while streams are unread that an earlier master received."""
        self.stored: Latest | None = None
        """The progress that is stored."""
        self._latest: Latest | None = None
        self._beginning, self._lock = asyncio.Lock(), asyncio.Lock()
        self._offsets: dict[StreamKey, int] = {}
        self._names: dict[StreamKey, SeriesNames] = {}
        self._unsaved = OncePerReason()
        self._skipped: Counter[StreamKey] = Counter()
        self._has_all_events = False
        """True if the job can have no more events from its workers."""

    @property
    def newest(self) -> Latest | None:
        """The newest progress; None until it is complete."""
        return self._latest if self.is_complete else None

    async def begin(self, database: Database, key: StreamKey) -> bool:
        """Read all streams of an attempt, once. Returns whether a first step was among their lines."""
        has_first_step = False
        async with self._beginning:
            if self.is_complete:
                return False
            for one in await asyncio.to_thread(self._streams.progress_streams, key.job, key.attempt):
                try:
                    has_first_step |= await self.read(database, one)
                except OSError as error:
                    if one == key:
                        raise
                    # It must not keep the progress of the others back.
                    text = "the progress of rank %d can't be read: %s"
                    _LOG.warning(text, one.rank, error, extra=about("progress_unread", job=key.job))
            self.is_complete = True
        return has_first_step

    async def read(self, database: Database, key: StreamKey) -> bool:
        """Read the new lines of a stream. Returns whether a first step was among them."""
        has_first_step = False
        while (batch := await self._read_batch(database, key)) is not None:
            has_first_step = has_first_step or batch.first_step is not None
        return has_first_step

    async def _read_batch(self, database: Database, key: StreamKey) -> LineBatch | None:
        """Read the next lines of a stream and store what the database needs; None if there are no lines."""
        async with self._lock:
            start = self._offsets.get(key, 0)
            batch, latest = await asyncio.to_thread(self._read, key, start)
            await self._store(database, key, batch)
            if batch.error is not None:
                self._skip(key, batch.error, batch.invalid)
            self._latest = latest
            # The lines before this offset are committed and need not be read again.
            self._offsets[key] = batch.end
            if (names := self._names[key]).is_due():
                await asyncio.to_thread(self._save, names)
            return batch if batch.end > start else None

    def log_skipped(self) -> None:
        """Log the number of skipped lines of each stream, of which only the first was logged."""
        for key, count in self._skipped.items():
            if count > 1:
                _LOG.warning("%d more progress lines were skipped", count - 1, extra=_about_skipped_line(key))

    def _read(self, key: StreamKey, start: int) -> tuple[LineBatch, Latest | None]:
        batch = parse(key, self._streams.lines(key, start), start)
        if key not in self._names:
            self._names[key] = SeriesNames(self._streams, key)
        self._names[key].feed_parsed(batch.steps, batch.end)
        return batch, newest(self._latest, key, batch.steps)

    def _save(self, names: SeriesNames) -> None:
        """Save names. Without them, charts read more, and that must not keep the progress from users."""
        try:
            names.save()
        except OSError as error:
            if self._unsaved.is_new(str(error)):
                _LOG.warning("the names of series can't be saved: %s", error, extra=about("series_names_unsaved"))

    async def _store(self, database: Database, key: StreamKey, batch: LineBatch) -> None:
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
            reason = one_line(redact_text(str(error))[:_ERROR_CHARS])
            _LOG.warning("a progress line is invalid and is skipped: %s", reason, extra=_about_skipped_line(key))
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


def _about_skipped_line(key: StreamKey) -> dict[str, object]:
    return about("progress_line_skipped", job=key.job, attempt=key.attempt, rank=key.rank)
