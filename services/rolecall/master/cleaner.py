"""The loop that deletes marked jobs, unreferenced files of attempts, and old checkpoints.

It is separate from the reconciler, so that a slow blob store delays only deletion. Only the database records pending
deletions, files of jobs are deleted before their rows, and every step can be repeated. So a master that was killed in
between continues where it was. A master that no longer leads deletes no file to which a row can still refer.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.logs import about
from rolecall.master.blobs import Blobs
from rolecall.master.clock import Clock
from rolecall.master.retention import KEEP_KEYS, RetentionPolicy, blobs_of, deletion_reason, superfluous
from rolecall.master.signals import Signal, wait
from rolecall.master.storage_errors import ErrorLog, LeadershipLost, Pulse
from rolecall.master.store import artifacts, attempts, audit, checkpoints, deletion, events, jobs
from rolecall.master.store.database import Database
from rolecall.master.store.records import UnreadableRow
from rolecall.master.streams import Streams
from rolecall.retry import delay_s
from rolecall.spec.api import RETENTION
from rolecall.spec.errors import NotFound
from rolecall.spec.plan import CheckpointManifest
from rolecall.spec.state import JobState

_EXPIRE_EVERY_S = 3600.0
_LOOK_EVERY_S = 60.0
_FIRST_RETRY_S, _LAST_RETRY_S = 1.0, 60.0
_STORE_S = 120.0
"""The time limit of the blob store for one job."""
_BATCH = 50
_MAX_FAILURES = 3
"""The number of consecutive failures after which the blob store counts as unavailable until the next pass."""
_LOG = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False)
class Cleaner:
    """Deletes jobs, files and checkpoints according to `policy`."""

    database: Database
    blobs: Blobs
    streams: Streams
    policy: RetentionPolicy
    garbage: Signal
    clock: Clock

    def __post_init__(self) -> None:
        self.pulse = Pulse("cleaning up", self.clock.monotonic)
        self._errors = ErrorLog()
        self._begun = self.clock.now().timestamp()
        self._expire_at = self.clock.monotonic()
        self._crowded: set[str] = set()
        self._failed: set[str] = set()
        self._forgotten: dict[str, set[str]] = {}
        """The blobs of each job's forgotten checkpoints that are not deleted yet."""

    def recorded(self, job: str) -> None:
        """Record that the job has a new checkpoint, so that older ones can be deleted."""
        self._crowded.add(job)
        self.garbage.notify()

    async def run(self) -> None:
        """Run passes until cancelled."""
        failures = 0
        await self._try("deleting what killed uploads left", self._clear_uploads())
        while True:
            ticket = self.garbage.ticket()
            with self.pulse.next_pass():
                self.pulse.succeeded = await self.clean()
            failures = 0 if self.pulse.succeeded else failures + 1
            await wait(ticket, delay_s(failures, _FIRST_RETRY_S, _LAST_RETRY_S) if failures else _LOOK_EVERY_S)

    async def clean(self) -> bool:
        """Run one pass. Returns whether nothing has to be retried. Raises `LeadershipLost`."""
        async with self.database.write():
            pass  # Jobs' files are deleted before their rows, so this master must know in advance that it leads.
        if self.clock.monotonic() >= self._expire_at:
            await self._expire()
            self._expire_at = self.clock.monotonic() + _EXPIRE_EVERY_S
        swept, collected = await self._sweep_all(), await self._collect_all()
        return await self._delete_all() and swept and collected

    async def _clear_uploads(self) -> None:
        if cleared := await self.blobs.clear_uploads(self._begun):
            _LOG.info("deleted %d uploads that a killed master left", cleared, extra=about("uploads_deleted"))

    async def _expire(self) -> None:
        """Delete what only time expires: old jobs, keys, events, audit entries, checkpoints of succeeded jobs."""
        now = self.clock.now()
        async with self.database.write() as connection:
            await deletion.forget_keys(connection, now - KEEP_KEYS)
            await events.trim_all(connection)
            if self.policy.audit is not None:
                await audit.prune(connection, now - self.policy.audit)
        if self.policy.jobs is not None:
            before = now - self.policy.jobs
            async with self.database.read() as connection:
                old = [job for job, *_ in await deletion.ended(connection, before)]
            for start in range(0, len(old), _BATCH):
                async with self.database.write() as connection:
                    await deletion.mark_ended(connection, old[start : start + _BATCH], before, now)
        async with self.database.read() as connection:
            self._crowded |= set(await checkpoints.crowded_jobs(connection, self.policy.checkpoints))
            if self.policy.finished_checkpoints is not None:
                before = now - self.policy.finished_checkpoints
                self._crowded |= set(await deletion.succeeded_with_checkpoints(connection, before))

    async def _delete_all(self) -> bool:
        """Delete marked jobs: files first, rows last, so that a master that is killed in between finds the mark."""
        while True:
            async with self.database.read() as connection:
                marked = await deletion.marked(connection, _BATCH + len(self._failed))
            gone = await self._for_each_job(marked, "deleting job", self._delete_files)
            if gone:
                async with self.database.write() as connection:
                    await deletion.remove(connection, gone)
                _LOG.info("deleted %d jobs: %s", len(gone), ", ".join(gone), extra=about("jobs_deleted"))
            if len(gone) < len(marked) or not marked:
                return not marked

    async def _delete_files(self, job: str) -> None:
        await self.streams.remove_job(job)
        await self.blobs.remove_job(job)

    async def _sweep_all(self) -> bool:
        """Delete unreferenced files of ended attempts. A later pass retries after a failure of the blob store."""
        async with self.database.read() as connection:
            unswept = await attempts.unswept(connection)
        done = await self._for_each_job(
            unswept, "deleting the remaining files of", lambda job: self._sweep(job, unswept[job])
        )
        return len(done) == len(unswept)

    async def _sweep(self, job: str, number: int) -> None:
        """Delete the unreferenced files of the attempts up to `number` in the blob store."""
        async with self.database.read() as connection:
            if await checkpoints.has_unreadable(connection, job):
                return  # The unreadable checkpoint can refer to any blob.
            known = await _blobs_of_checkpoints(connection, job)
            shared = {artifact.blob for artifact in await artifacts.of_job(connection, job)}
        if swept := await self.blobs.sweep(job, number, shared | known):
            _LOG.info("job %s: deleted %d leftover files", job, swept, extra=about("leftovers_deleted", job=job))
        async with self.database.write() as connection:
            # If a checkpoint has been removed meanwhile, the next pass deletes its files.
            if await _blobs_of_checkpoints(connection, job) >= known:
                await attempts.set_swept(connection, job, number)

    async def _collect_all(self) -> bool:
        crowded = set(self._crowded)
        self._crowded -= crowded
        done = await self._for_each_job(crowded, "deleting old checkpoints of", self._collect)
        self._crowded |= crowded - set(done)
        return len(done) == len(crowded)

    async def _collect(self, job: str) -> None:
        async with self.database.read() as connection:
            if await checkpoints.has_unreadable(connection, job):
                return  # The unreadable checkpoint can share blobs.
            try:
                record = await jobs.get(connection, job)
                in_use = await attempts.resumed_from(connection, record) if record.state.holds_slots else None
            except (NotFound, UnreadableRow):
                self._forgotten.pop(job, None)
                return  # The job has been deleted, or will be set aside.
            known = await checkpoints.of_job(connection, job)
            shared = {artifact.blob for artifact in await artifacts.of_job(connection, job)}
        kept_s = self.policy.finished_checkpoints
        ended_at = record.ended_at if record.state is JobState.SUCCEEDED else None
        if kept_s is not None and ended_at is not None and ended_at < self.clock.now() - kept_s:
            manifests, why = [one.manifest for one in known], f"the job succeeded more than {kept_s} ago"
            why = f"{why} (ROLECALL_KEEP_CHECKPOINT_DAYS)"
        else:
            manifests = superfluous(known, self.policy.checkpoints, in_use)
            why = f"newer ones are kept (ROLECALL_KEEP_CHECKPOINTS={self.policy.checkpoints})"
        if manifests:
            await self._forget(job, manifests, why)
        kept = blobs_of(record.manifest for record in known if record.manifest not in manifests)
        forgotten = self._forgotten.get(job, set())
        for blob in sorted(forgotten - kept - shared):
            await self.blobs.delete(job, blob)
            forgotten.discard(blob)  # A pass after a time limit continues from here.
        self._forgotten.pop(job, None)

    async def _forget(self, job: str, manifests: list[CheckpointManifest], why: str) -> None:
        """Delete the rows of checkpoints.

        Their blobs come after that: the decision is void if another master leads by now, because it may have found
        that newer checkpoints are damaged. If this master is killed in between, the sweep of the attempts deletes them.
        """
        async with self.database.write() as connection:
            for manifest in manifests:
                await checkpoints.remove(connection, job, manifest)
            await attempts.unsweep(connection, job, {manifest.attempt for manifest in manifests})
            reason = deletion_reason(manifests, why)
            await events.add(connection, job, self.clock.now(), RETENTION, reason)
        self._forgotten.setdefault(job, set()).update(blobs_of(manifests))

    async def _for_each_job(
        self, found: Iterable[str], what: str, step: Callable[[str], Coroutine[None, None, None]]
    ) -> list[str]:
        """The jobs whose step succeeded. Jobs that failed before come last, so that they don't delay others."""
        done: list[str] = []
        failures = 0
        for job in sorted(found, key=lambda job: job in self._failed):
            if await self._try(f"{what} {job}", step(job)):
                done.append(job)
                self._failed.discard(job)
                failures = 0
            else:
                self._failed.add(job)
                failures += 1
            if failures == _MAX_FAILURES:
                break
        return done

    async def _try(self, what: str, step: Coroutine[None, None, None]) -> bool:
        """Return whether the step succeeded within the time limit. Raises `LeadershipLost`."""
        try:
            async with asyncio.timeout(_STORE_S):
                await step
        except LeadershipLost:
            raise
        except Exception as error:  # noqa: BLE001 - each store has errors of its own, and each job is a tick of its own
            self._errors.failed(what, error)
            return False
        self._errors.recovered(what)
        return True


async def _blobs_of_checkpoints(connection: AsyncConnection, job: str) -> set[str]:
    """The blobs of all checkpoints of a job."""
    return blobs_of(record.manifest for record in await checkpoints.of_job(connection, job))
