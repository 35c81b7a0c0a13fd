"""The loop that deletes: jobs that are marked for it, left-overs of attempts, checkpoints that need not stay.

It runs beside the reconciler, so that a slow blob store delays nothing but deletion. What is to be done is in the
database alone, files go before the rows that name them, and every step may be done twice: a master that was killed in
between goes on where it was.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from datetime import datetime, timedelta

from rolecall.edge.logs import about
from rolecall.master.blobs import Blobs
from rolecall.master.clock import Clock
from rolecall.master.retention import KEEP_KEYS, Policy, blobs_of, deletion_reason, superfluous
from rolecall.master.signals import Signal, wait
from rolecall.master.storage_errors import ErrorLog, Pulse
from rolecall.master.store import artifacts, attempts, audit, checkpoints, deletion, events, jobs
from rolecall.master.store.database import Database
from rolecall.master.store.records import CheckpointRecord, UnreadableRow
from rolecall.master.streams import Streams
from rolecall.spec.errors import NotFound
from rolecall.spec.plan import CheckpointManifest
from rolecall.spec.state import JobState

_EXPIRE_EVERY = timedelta(hours=1)
_LOOK_EVERY_S = 60.0
_FIRST_RETRY_S, _LAST_RETRY_S = 0.5, 60.0
_STORE_S = 120.0
"""How long the blob store may take for one job."""
_BATCH = 50
_MAX_FAILURES = 3
"""After so many failures in a row the blob store counts as away, and the others wait for the next pass."""
_log = logging.getLogger(__name__)


class Cleaner:
    """Deletes what nobody needs. `clock` is the time by which things expire."""

    def __init__(
        self,
        *,
        database: Database,
        blobs: Blobs,
        streams: Streams,
        policy: Policy,
        garbage: Signal,
        clock: Clock,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._streams = streams
        self._policy = policy
        self._garbage = garbage
        self._clock = clock
        self.pulse = Pulse(clock.monotonic)
        self._errors = ErrorLog()
        self._begun = clock.now().timestamp()
        self._expired_at: datetime | None = None
        self._crowded: set[str] = set()
        self._failed: set[str] = set()

    def recorded(self, job: str) -> None:
        """The job has a new checkpoint: an older one may go."""
        self._crowded.add(job)
        self._garbage.notify()

    async def run(self) -> None:
        """Pass after pass, until cancelled."""
        retry_s = _FIRST_RETRY_S
        await self._try("deleting what killed uploads left", self._clear_uploads())
        while True:
            ticket = self._garbage.ticket()
            try:
                succeeded = await self.clean()
                self._errors.recovered("cleaning up")
            except Exception as error:  # noqa: BLE001 - a loop's tick: the next pass starts from the same facts
                self._errors.failed("cleaning up", error)
                succeeded = False
            if succeeded:
                self.pulse.succeeded()
            retry_s = _FIRST_RETRY_S if succeeded else min(2 * retry_s, _LAST_RETRY_S)
            await wait(ticket, _LOOK_EVERY_S if succeeded else retry_s)

    async def clean(self) -> bool:
        """One pass; return whether nothing is left to be tried again."""
        if self._expired_at is None or self._clock.now() - self._expired_at >= _EXPIRE_EVERY:
            await self._expire()
            self._expired_at = self._clock.now()
        swept, collected = await self._sweep_all(), await self._collect_all()
        return await self._delete_all() and swept and collected

    async def _clear_uploads(self) -> None:
        if cleared := await self._blobs.clear_uploads(self._begun):
            _log.info("deleted %d uploads that a killed master left", cleared, extra=about("uploads_deleted"))

    async def _expire(self) -> None:
        """What only time changes: old jobs, keys, events, audit entries, checkpoints of jobs that succeeded."""
        now = self._clock.now()
        async with self._database.write() as connection:
            await deletion.forget_keys(connection, now - KEEP_KEYS)
            await deletion.trim_events(connection, events.MAX_EVENTS)
            if self._policy.audit is not None:
                await audit.prune(connection, now - self._policy.audit)
        if self._policy.jobs is not None:
            before = now - self._policy.jobs
            async with self._database.read() as connection:
                old = [job for job, *_ in await deletion.ended(connection, before)]
            for start in range(0, len(old), _BATCH):
                async with self._database.write() as connection:
                    await deletion.mark_ended(connection, old[start : start + _BATCH], before, now)
        async with self._database.read() as connection:
            self._crowded |= set(await checkpoints.crowded_jobs(connection, self._policy.checkpoints))
            if self._policy.finished_checkpoints is not None:
                before = now - self._policy.finished_checkpoints
                self._crowded |= set(await deletion.succeeded_with_checkpoints(connection, before))

    async def _delete_all(self) -> bool:
        """Files first, rows last: a master that is killed in between finds the mark and begins again."""
        while True:
            async with self._database.read() as connection:
                marked = await deletion.marked(connection, _BATCH + len(self._failed))
            gone = await self._for_each_job(marked, "deleting job", self._delete_files)
            if gone:
                async with self._database.write() as connection:
                    await deletion.remove(connection, gone)
                _log.info("deleted %d jobs: %s", len(gone), ", ".join(gone), extra=about("jobs_deleted"))
            if len(gone) < len(marked) or not marked:
                return not marked

    async def _delete_files(self, job: str) -> None:
        await self._streams.remove_job(job)
        await self._blobs.remove_job(job)

    async def _sweep_all(self) -> bool:
        """Clean up behind attempts that ended. What a failing blob store keeps, a later pass deletes."""
        async with self._database.read() as connection:
            unswept = await attempts.unswept(connection)
        done = await self._for_each_job(
            unswept, "deleting the remaining files of", lambda job: self._sweep(job, unswept[job])
        )
        return len(done) == len(unswept)

    async def _sweep(self, job: str, number: int) -> None:
        """Delete what the attempts up to `number` left in the blob store and nobody can ask for."""
        async with self._database.read() as connection:
            if await checkpoints.has_unreadable(connection, job):
                return  # Nobody knows which blobs it names, so that none is left over for certain.
            known = blobs_of(record.manifest for record in await checkpoints.of_job(connection, job))
            shared = {artifact.blob for artifact in await artifacts.of_job(connection, job)}
        if swept := await self._blobs.sweep(job, number, shared | known):
            _log.info("job %s: deleted %d leftover files", job, swept, extra=about("leftovers_deleted", job=job))
        async with self._database.write() as connection:
            await attempts.set_swept(connection, job, number)

    async def _collect_all(self) -> bool:
        crowded = set(self._crowded)
        self._crowded -= crowded
        done = await self._for_each_job(crowded, "deleting old checkpoints of", self._collect)
        self._crowded |= crowded - set(done)
        return len(done) == len(crowded)

    async def _collect(self, job: str) -> None:
        async with self._database.read() as connection:
            if await checkpoints.has_unreadable(connection, job):
                return  # Its blobs may be those of others.
            try:
                record = await jobs.get(connection, job)
                in_use = await attempts.resumed_from(connection, record) if record.state.holds_slots else None
            except (NotFound, UnreadableRow):
                return  # It was deleted meanwhile, or is about to be set aside.
            known = await checkpoints.of_job(connection, job)
            shared = {artifact.blob for artifact in await artifacts.of_job(connection, job)}
        kept_s = self._policy.finished_checkpoints
        succeeded = record.state is JobState.SUCCEEDED
        if kept_s is not None and succeeded and _is_old(record.ended_at, self._clock.now() - kept_s):
            manifests, why = [one.manifest for one in known], f"the job succeeded more than {kept_s} ago"
            why = f"{why} (ROLECALL_KEEP_CHECKPOINT_DAYS)"
        else:
            manifests = superfluous(known, self._policy.checkpoints, in_use)
            why = f"newer ones are kept (ROLECALL_KEEP_CHECKPOINTS={self._policy.checkpoints})"
        if manifests:
            await self._forget(job, known, manifests, shared, why)

    async def _forget(
        self,
        job: str,
        known: list[CheckpointRecord],
        manifests: list[CheckpointManifest],
        shared: set[str],
        why: str,
    ) -> None:
        # Blobs first: cut off in between, the next pass finds the manifests and deletes the rest.
        kept = blobs_of(record.manifest for record in known if record.manifest not in manifests)
        for blob in sorted(blobs_of(manifests) - kept - shared):
            await self._blobs.delete(job, blob)
        async with self._database.write() as connection:
            for manifest in manifests:
                await checkpoints.remove(connection, job, manifest)
            reason = deletion_reason(manifests, why)
            await events.add(connection, job, self._clock.now(), "checkpoint", reason)

    async def _for_each_job(
        self, found: Iterable[str], what: str, step: Callable[[str], Coroutine[None, None, None]]
    ) -> list[str]:
        """The jobs for which the step was taken. Those that failed before come last, so that they hold nobody up."""
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
        """Whether the step was taken, in time and without an error."""
        try:
            async with asyncio.timeout(_STORE_S):
                await step
        except Exception as error:  # noqa: BLE001 - each store has errors of its own, and each job is a tick of its own
            self._errors.failed(what, error)
            return False
        self._errors.recovered(what)
        return True


def _is_old(ended_at: datetime | None, before: datetime) -> bool:
    return ended_at is not None and ended_at < before
