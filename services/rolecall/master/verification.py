"""The verification of checkpoints that a worker reported as damaged.

A worker accesses the blob store through its node's mount, cache and credentials, which can be the cause. So the master
reads every part itself. It removes a checkpoint only if the damage is certain: two readings some time apart must find
the same. Files that are gone can come back with their mount, so the master keeps a checkpoint with missing files if the
job has no other complete one. If the master can't read the store either, it tries again later.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.logs import OncePerReason, about
from rolecall.master import lifecycle
from rolecall.master.blobs import Blobs
from rolecall.master.clock import Clock
from rolecall.master.retention import deletion_reason
from rolecall.master.signals import Signal, wait
from rolecall.master.storage_errors import ErrorLog, Pulse
from rolecall.master.store import attempts, checkpoints, events, jobs
from rolecall.master.store.database import Database
from rolecall.spec.errors import NotFound
from rolecall.spec.plan import CheckpointManifest, CheckpointPart
from rolecall.spec.visible import listed

AGAIN = timedelta(seconds=60)
"""The time after which an unreadable store is tried again."""
CONFIRM_AFTER = timedelta(seconds=15)
"""The minimum time between the two readings that prove damage; the job waits for both, up to `transitions.VERIFY_S`."""
_LOOK_EVERY_S = 15.0
_REMEMBERED = timedelta(minutes=10)
_MAX_READINGS = 1000
_PART_S, _BYTES_PER_S = 60.0, 5e6
"""The time limit for reading a part: a constant, and its size divided by a minimum rate."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a verification: damage, an obstacle that prevents a result, or neither (intact)."""

    damage: str | None = None
    obstacle: str | None = None
    is_gone: bool = False
    """True if the damage is that a part doesn't exist."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """A reading that found damage, which the next reading has to confirm."""

    damage: str
    at: datetime


@dataclass(kw_only=True, eq=False)
class Verifier:
    """Verifies reported checkpoints, of each owner one after another.

    A user can report checkpoints that take hours to read. They delay only others of this user.
    """

    database: Database
    blobs: Blobs
    garbage: Signal
    settled: Callable[[str], None]
    clock: Clock

    def __post_init__(self) -> None:
        self.pulse = Pulse("looking for checkpoints to verify", self.clock.monotonic)
        self._errors = ErrorLog()
        self._reasons = OncePerReason()
        self._active: dict[str, asyncio.Task[bool]] = {}
        """The verification in progress for each owner."""
        self._failed: set[str] = set()
        """The owners whose last verification failed, and is due again."""
        self._readings: dict[str, _Reading] = {}
        self._damaged: dict[str, datetime] = {}
        """The times at which other checkpoints were found damaged. A reading takes long, so it is not repeated soon."""

    async def run(self) -> None:
        """Verify due checkpoints until cancelled."""
        try:
            while True:
                ticket = self.garbage.ticket()
                with self.pulse.next_pass():
                    await self.begin()
                    self.pulse.succeeded = not self._failed
                await wait(ticket, _LOOK_EVERY_S)
        finally:
            for task in self._active.values():
                task.cancel()

    async def begin(self) -> list[asyncio.Task[bool]]:
        """Begin to verify due checkpoints: one of each owner whose last verification has ended."""
        async with self.database.read() as connection:
            due = await checkpoints.due_for_verification(connection, self.clock.now())
        self._failed &= {owner for owner, *_ in due}
        begun: list[asyncio.Task[bool]] = []
        for owner, job, manifest in due:
            if owner not in self._active:
                step = self._errors.attempt(f"verifying checkpoints of {job}", self._verify(job, manifest), job)
                task = self._active[owner] = asyncio.create_task(step, name=f"verification of {job}")
                task.add_done_callback(lambda task, owner=owner: self._ended(owner, task))
                begun.append(task)
        return begun

    def _ended(self, owner: str, task: asyncio.Task[bool]) -> None:
        del self._active[owner]
        if task.cancelled():
            return
        if task.result():
            self._failed.discard(owner)
            self.garbage.notify()  # The owner's next one may be due, and this one's files may have to be deleted.
        else:
            self._failed.add(owner)

    async def _verify(self, job: str, manifest: CheckpointManifest) -> bool:
        verdict = await examine(self.blobs, job, manifest)
        if verdict.is_gone and not await self._has_other(job, manifest):
            verdict = Verdict(obstacle=f"{verdict.damage}, and the job has no other complete checkpoint")
        async with self.database.write() as connection:
            await self._conclude(connection, job, manifest, verdict)
        self.settled(job)
        return True

    async def _has_other(self, job: str, manifest: CheckpointManifest) -> bool:
        """Return whether the job has another checkpoint of which all parts exist, unchanged."""
        async with self.database.read() as connection:
            others = [one.manifest for one in await checkpoints.of_job(connection, job) if one.manifest != manifest]
        now = self.clock.now()
        self._damaged = {one: at for one, at in self._damaged.items() if now - at < _REMEMBERED}
        for other in others:
            if (subject := f"{job}/{other.attempt}/{other.step}") in self._damaged:
                continue
            verdict = await examine(self.blobs, job, other)
            if verdict == Verdict():
                return True
            if verdict.damage is not None and not verdict.is_gone:
                self._damaged[subject] = now
        return False

    async def _conclude(
        self, connection: AsyncConnection, job: str, manifest: CheckpointManifest, verdict: Verdict
    ) -> None:
        subject = f"{job}/{manifest.attempt}/{manifest.step}"
        before = self._readings.pop(subject, None)
        if before is not None and verdict.damage is not None and verdict.damage != before.damage:
            verdict = Verdict(obstacle=f"it reads differently each time: {before.damage}; then {verdict.damage}")
        try:
            record = await jobs.get(connection, job)
        except NotFound:
            return  # The job has been deleted.
        now, checkpoint = self.clock.now(), f"the checkpoint at step {manifest.step}"
        if verdict.obstacle is not None:
            await checkpoints.set_verification(connection, job, manifest, now + AGAIN)
            message = f"{checkpoint} can't be verified and is kept: {verdict.obstacle}; the master tries again"
            await self._tell_once(connection, job, manifest, "unverified", message)
            return
        if verdict.damage is not None:
            first_at = before.at if before else now
            if now < first_at + CONFIRM_AFTER:
                self._readings[subject] = _Reading(verdict.damage, first_at)
                if len(self._readings) > _MAX_READINGS:  # Their checkpoints may have been deleted.
                    del self._readings[next(iter(self._readings))]
                await checkpoints.set_verification(connection, job, manifest, first_at + CONFIRM_AFTER)
                message = f"{checkpoint} seems to be damaged, and the master reads it again: {verdict.damage}"
                await self._tell_once(connection, job, manifest, "suspected", message)
                return
            await checkpoints.remove(connection, job, manifest)
            await attempts.unsweep(connection, job, [manifest.attempt])
            message = deletion_reason([manifest], verdict.damage)
        else:
            await checkpoints.set_verification(connection, job, manifest, None)
            message = (
                f"{checkpoint} is intact: the master read all its parts. What failed is "
                f"{listed(record.avoid or ('a node',))}: look at its mount of the blob store, its free space and its "
                "credentials"
            )
        self._reasons.end(subject)
        fields = about("checkpoint_damaged", job=job, attempt=manifest.attempt)
        _LOG.warning("job %s: %s", job, message, extra=fields)
        await events.add(connection, job, now, "checkpoint", message, attempt=manifest.attempt)
        backoff = timedelta(seconds=lifecycle.backoff_s(max(1, record.crashes)))
        await jobs.release(connection, record, record.queued_at + backoff)

    async def _tell_once(
        self, connection: AsyncConnection, job: str, manifest: CheckpointManifest, state: str, message: str
    ) -> None:
        """Log and store an event, unless the checkpoint was in this state before."""
        if self._reasons.is_new(state, f"{job}/{manifest.attempt}/{manifest.step}"):
            fields = about(f"checkpoint_{state}", job=job, attempt=manifest.attempt)
            _LOG.warning("job %s: %s", job, message, extra=fields)
            await events.add(connection, job, self.clock.now(), "checkpoint", message, attempt=manifest.attempt)


async def examine(blobs: Blobs, job: str, manifest: CheckpointManifest) -> Verdict:
    """Compare all parts of a checkpoint with its manifest: first the sizes, which costs little, then the contents."""
    for compare in (_compare_size, _compare_content):
        for part in manifest.parts:
            try:
                async with asyncio.timeout(_PART_S + part.size / _BYTES_PER_S):
                    verdict = await compare(blobs, job, part)
                    # A store that is not mounted looks like an empty one.
                    if verdict.damage is not None and not await blobs.is_populated():
                        return Verdict(obstacle="the blob store looks empty; is it mounted on the master?")
            except TimeoutError:
                return Verdict(obstacle=f"the blob store took too long to give part {part.name!r}")
            except Exception as error:  # noqa: BLE001 - each store has errors of its own, and none proves damage
                return Verdict(obstacle=f"part {part.name!r}: {type(error).__name__}: {error}")
            if verdict.damage is not None:
                return verdict
    return Verdict()


async def _compare_size(blobs: Blobs, job: str, part: CheckpointPart) -> Verdict:
    return _verdict_on_size(part, await blobs.size(job, part.blob))


async def _compare_content(blobs: Blobs, job: str, part: CheckpointPart) -> Verdict:
    size, sha256 = await blobs.digest(job, part.blob) or (None, "")
    if size != part.size:
        return _verdict_on_size(part, size)
    if sha256 == part.sha256:
        return Verdict()
    return Verdict(
        damage=f"part {part.name!r} ({part.blob}) has the SHA-256 {sha256[:16]}… instead of {part.sha256[:16]}…"
    )


def _verdict_on_size(part: CheckpointPart, size: int | None) -> Verdict:
    named = f"part {part.name!r} ({part.blob})"
    if size is None:
        return Verdict(damage=f"{named} is gone from the blob store", is_gone=True)
    return Verdict() if size == part.size else Verdict(damage=f"{named} has {size} bytes instead of {part.size}")
