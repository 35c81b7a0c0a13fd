"""The verification of checkpoints that a worker reported as damaged.

A worker accesses the blob store through its node's mount, cache and credentials, which can be the cause. So the master
reads every part itself. It removes a checkpoint only if the damage is certain. If the master can't read the store
either, it tries again later.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.edge.logs import OncePerReason, about
from rolecall.master import lifecycle
from rolecall.master.blobs import Blobs
from rolecall.master.clock import Clock
from rolecall.master.retention import deletion_reason, listed
from rolecall.master.signals import Signal, wait
from rolecall.master.storage_errors import ErrorLog, Pulse
from rolecall.master.store import attempts, checkpoints, events, jobs
from rolecall.master.store.database import Database
from rolecall.spec.errors import NotFound
from rolecall.spec.plan import CheckpointManifest, CheckpointPart

AGAIN = timedelta(seconds=60)
"""The time after which an unreadable store is tried again."""
_LOOK_EVERY_S = 15.0
_PART_S, _BYTES_PER_S = 60.0, 5e6
"""The time limit for reading a part: a constant, and its size divided by a minimum rate."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a verification: damage, an obstacle that prevents a result, or neither (intact)."""

    damage: str | None = None
    obstacle: str | None = None


@dataclass(kw_only=True, eq=False)
class Verifier:
    """Verifies reported checkpoints, one after another."""

    database: Database
    blobs: Blobs
    garbage: Signal
    settled: Callable[[str], None]
    clock: Clock

    def __post_init__(self) -> None:
        self.pulse = Pulse(self.clock.monotonic)
        self._errors = ErrorLog()
        self._reasons = OncePerReason()

    async def run(self) -> None:
        """Verify due checkpoints until cancelled."""
        while True:
            ticket = self.garbage.ticket()
            self.pulse.begin()
            try:
                await self.verify()
                self._errors.recovered("verifying checkpoints")
                self.pulse.succeeded()
            except Exception as error:  # noqa: BLE001 - a loop's tick: the next pass retries
                self._errors.failed("verifying checkpoints", error)
            await wait(ticket, _LOOK_EVERY_S)

    async def verify(self) -> None:
        """Verify every checkpoint that is due."""
        async with self.database.read() as connection:
            due = await checkpoints.due_for_verification(connection, self.clock.now())
        for job, manifest in due:
            verdict = await examine(self.blobs, job, manifest)
            async with self.database.write() as connection:
                await self._conclude(connection, job, manifest, verdict)
            self.garbage.notify()
            self.settled(job)

    async def _conclude(
        self, connection: AsyncConnection, job: str, manifest: CheckpointManifest, verdict: Verdict
    ) -> None:
        try:
            record = await jobs.get(connection, job)
        except NotFound:
            return  # The job has been deleted.
        now, checkpoint = self.clock.now(), f"the checkpoint at step {manifest.step}"
        subject = f"{job}/{manifest.attempt}/{manifest.step}"
        if verdict.obstacle is not None:
            await checkpoints.set_verification(connection, job, manifest, now + AGAIN)
            message = f"{checkpoint} can't be verified and is kept: {verdict.obstacle}; the master tries again"
            if self._reasons.is_new("unverified", subject):
                fields = about("checkpoint_unverified", job=job, attempt=manifest.attempt)
                _LOG.warning("job %s: %s", job, message, extra=fields)
                await events.add(connection, job, now, "checkpoint", message, attempt=manifest.attempt)
            return
        self._reasons.end(subject)
        if verdict.damage is not None:
            await checkpoints.remove(connection, job, manifest)
            await attempts.set_swept(connection, job, manifest.attempt, False)
            message = deletion_reason([manifest], verdict.damage)
        else:
            await checkpoints.set_verification(connection, job, manifest, None)
            message = (
                f"{checkpoint} is intact: the master read all its parts. What failed is "
                f"{listed(record.avoid or ('a node',))}: look at its mount of the blob store, its free space and its "
                "credentials"
            )
        fields = about("checkpoint_damaged", job=job, attempt=manifest.attempt)
        _LOG.warning("job %s: %s", job, message, extra=fields)
        await events.add(connection, job, now, "checkpoint", message, attempt=manifest.attempt)
        backoff = timedelta(seconds=lifecycle.backoff_s(max(1, record.crashes)))
        await jobs.release(connection, record, record.queued_at + backoff)


async def examine(blobs: Blobs, job: str, manifest: CheckpointManifest) -> Verdict:
    """Read all parts of a checkpoint, and compare them with its manifest."""
    for part in manifest.parts:
        try:
            async with asyncio.timeout(_PART_S + part.size / _BYTES_PER_S):
                damage = await _damage(blobs, job, part)
                # A store that is not mounted looks like an empty one.
                if damage is not None and not await blobs.is_populated():
                    return Verdict(obstacle="the blob store looks empty; is it mounted on the master?")
        except TimeoutError:
            return Verdict(obstacle=f"the blob store took too long to give part {part.name!r}")
        except Exception as error:  # noqa: BLE001 - each store has errors of its own, and none of them proves damage
            return Verdict(obstacle=f"part {part.name!r}: {type(error).__name__}: {error}")
        if damage is not None:
            return Verdict(damage=f"part {part.name!r} {damage}")
    return Verdict()


async def _damage(blobs: Blobs, job: str, part: CheckpointPart) -> str | None:
    found = await blobs.digest(job, part.blob)
    if found is None:
        return f"({part.blob}) is gone from the blob store"
    size, sha256 = found
    if size != part.size:
        return f"({part.blob}) has {size} bytes instead of {part.size}"
    if sha256 == part.sha256:
        return None
    if await blobs.digest(job, part.blob) != found:
        raise OSError(f"{part.blob} reads differently each time")
    return f"({part.blob}) has a SHA-256 other than the recorded one"
