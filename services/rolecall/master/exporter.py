"""The loop that exports jobs to another program, such as a collector of traces or an experiment tracker.

The database is its queue: an ended job is due until it has an event that it was exported. Therefore, neither a restart
nor a takeover loses a job, and a program that doesn't answer costs the master no memory.
"""

import asyncio
import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from rolecall.logs import about
from rolecall.master.clock import Clock
from rolecall.master.instruments import Instruments
from rolecall.master.storage_errors import Pulse, describe
from rolecall.master.store import events, exports, jobs
from rolecall.master.store.database import Database
from rolecall.retry import delay_s
from rolecall.spec.errors import NotFound
from rolecall.spec.state import JobState

KEPT = timedelta(hours=1)
"""The time after a job's end during which it is exported. Later, it is dropped."""
_MAX_PAUSE_S = 60.0
_AT_ONCE = 100
_MOST_FAILURES = 3
"""After this many failures in a row, the target probably fails for all jobs."""
_RUNNING = (JobState.RUNNING, JobState.STOPPING)
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Accepted:
    """The other program has accepted a job as it was."""

    ended_at: datetime | None
    """The job's end; None if it had not ended, or if something of it is still to be exported."""
    message: str
    """The text of the event that records the export of an ended job."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The other program has failed or refused a job."""

    reason: str
    is_away: bool = False
    """True if it would not accept other jobs either."""


class Target(Protocol):
    """A program that gets jobs."""

    kind: str
    """The kind of the event that records the export of an ended job."""
    is_live: bool
    """True if it also gets jobs that run."""

    async def export(self, job: str) -> Accepted | Rejected:
        """Export what is new of a job. Raises `NotFound`."""
        ...

    async def forget(self, job: str) -> None:
        """Release what it holds of a job that is not exported again soon."""
        ...

    def close(self) -> None:
        """Abort a running export, if it waits for a retry."""
        ...


@dataclass(frozen=True, slots=True)
class _Failure:
    """The state of a job whose last export failed."""

    count: int
    """Failures in a row."""
    reason: str
    retry_at: float


@dataclass(kw_only=True, eq=False)
class Exporter:
    """Exports the jobs that are due to one target."""

    target: Target
    pause_s: float
    """Seconds between two passes, and before the first retry."""
    database: Database
    instruments: Instruments
    clock: Clock

    def __post_init__(self) -> None:
        self.pulse = Pulse(f"exporting jobs ({self.target.kind})", self.clock.monotonic)
        self._failing: dict[str, _Failure] = {}
        self._running = set[str]()
        """The jobs that ran at the last pass, and those that are to be exported once more since then."""
        self._leaving = set[str]()
        """The jobs that this pass exports a last time before they run again, for example because they are paused."""
        self._passes = asyncio.Lock()

    async def run(self) -> None:
        """Run passes until cancelled. While the database fails, the pauses grow."""
        failures = 0
        try:
            while True:
                with self.pulse.next_pass():
                    await self.export_due()
                failures = 0 if self.pulse.succeeded else failures + 1
                await asyncio.sleep(delay_s(failures + 1, self.pause_s, _MAX_PAUSE_S))
        finally:
            self.target.close()

    async def export_due(self) -> bool:
        """Export the jobs that are due, until the target seems to be away. Returns whether none failed.

        A job that fails is tried again later, after the others.
        """
        async with self._passes:
            due = await self._due()
            failed = in_a_row = 0
            for job in due:
                outcome = await self._export(job)
                if isinstance(outcome, Accepted):
                    in_a_row = 0
                    continue
                failed, in_a_row = failed + 1, in_a_row + outcome.is_away
                if in_a_row == _MOST_FAILURES:
                    break
            return not failed

    async def _due(self) -> list[str]:
        """The jobs to export now: those that have ended, those that run, and once more those that no longer run."""
        now, since = self.clock.monotonic(), self.clock.now() - KEPT
        later = {job for job, failure in self._failing.items() if failure.retry_at > now}
        async with self.database.read() as connection:
            ended = await exports.due(connection, self.target.kind, since, _AT_ONCE, without=later)
            running = await jobs.in_states(connection, _RUNNING) if self.target.is_live else []
            gone = (self._failing.keys() | self._running) - later - {*running, *ended}
            found = {job: await jobs.find(connection, job) for job in gone}
        over = {job for job, record in found.items() if record is None or record.state.ended}
        if len(ended) < _AT_ONCE:  # Otherwise, some of them may still be due.
            for job in over:
                await self._drop(job)
        self._leaving = gone - over
        self._running = {*running, *self._leaving}
        due = [*ended, *(job for job in (*running, *self._leaving) if job not in later)]
        return sorted(due, key=lambda job: job in self._failing)

    async def _export(self, job: str) -> Accepted | Rejected:
        try:
            outcome = await self.target.export(job)
        except NotFound:
            await self.target.forget(job)
            return Accepted(None, "it has been deleted")
        except Exception as error:  # noqa: BLE001 - of a library, or of one job: others must continue
            outcome = Rejected(describe(error))
        if isinstance(outcome, Rejected):
            self._failed(job, outcome.reason)
            return outcome
        self._failing.pop(job, None)
        self.instruments.export(self.target.kind, "accepted")
        if outcome.ended_at is not None:
            await self._record(job, outcome.ended_at, outcome.message)
        if outcome.ended_at is not None or job in self._leaving:
            self._running.discard(job)
            await self.target.forget(job)
        return outcome

    def _failed(self, job: str, reason: str) -> None:
        self.instruments.export(self.target.kind, "rejected")
        if reason not in {failure.reason for failure in self._failing.values()}:
            message = "job %s can't be exported (%s): %s; retrying until an hour after the job's end"
            _LOG.warning(message, job, self.target.kind, reason, extra=about("export_failed", job=job))
        count = self._failing[job].count + 1 if job in self._failing else 1
        pause_s = delay_s(count, self.pause_s, _MAX_PAUSE_S)
        self._failing[job] = _Failure(count, reason, self.clock.monotonic() + pause_s)

    async def _drop(self, job: str) -> None:
        """Forget a job that has been exported, that ended too long ago, or that is deleted."""
        await self.target.forget(job)
        if (failure := self._failing.pop(job, None)) is None:
            return
        self.instruments.export(self.target.kind, "dropped")
        message = "job %s is no longer exported (%s), after %d failures: %s"
        extra = about("export_dropped", job=job)
        _LOG.warning(message, job, self.target.kind, failure.count, failure.reason, extra=extra)

    async def _record(self, job: str, ended_at: datetime, message: str) -> None:
        async with self.database.write() as connection:
            now = await jobs.find(connection, job)
            # After a retry in the meantime, the job is exported again when it ends again.
            if now is not None and now.ended_at == ended_at:
                # Not before the end, which the clock of another master may have set.
                await events.add(connection, job, max(self.clock.now(), ended_at), self.target.kind, message)
