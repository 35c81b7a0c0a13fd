"""The master's own look at checkpoints that a worker reported as damaged.

A worker sees the blob store through its node's mount, cache and credentials, so its word proves nothing. The master
reads every part itself. Only proven damage makes it forget a checkpoint; a store that it can't read either proves
nothing, and it looks again later.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.edge.logs import about
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
"""After which a store that could not be read is tried again."""
_LOOK_EVERY_S = 15.0
_PART_S, _BYTES_PER_S = 60.0, 5e6
"""A part has this long, and the time of its bytes at this rate."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a look at a checkpoint proved: damage, or nothing because of some trouble, or that it is intact."""

    damage: str | None = None
    obstacle: str | None = None


class Verifier:
    """Looks at doubted checkpoints, one after another."""

    def __init__(
        self,
        *,
        database: Database,
        blobs: Blobs,
        garbage: Signal,
        settled: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._garbage = garbage
        self._settled = settled
        self._clock = clock
        self.pulse = Pulse(clock.monotonic)
        self._errors = ErrorLog()
        self._logged: set[tuple[str, int, int]] = set()

    async def run(self) -> None:
        """Verify what is due, again and again, until cancelled."""
        while True:
            ticket = self._garbage.ticket()
            try:
                await self.verify()
                self._errors.recovered("verifying checkpoints")
                self.pulse.succeeded()
            except Exception as error:  # noqa: BLE001 - a loop's tick: the next look is as good
                self._errors.failed("verifying checkpoints", error)
            await wait(ticket, _LOOK_EVERY_S)

    async def verify(self) -> None:
        """Look at every checkpoint that is due."""
        async with self._database.read() as connection:
            due = await checkpoints.due_for_verification(connection, self._clock.now())
        for job, manifest in due:
            verdict = await examine(self._blobs, job, manifest)
            async with self._database.write() as connection:
                await self._conclude(connection, job, manifest, verdict)
            self._garbage.notify()
            self._settled(job)

    async def _conclude(
        self, connection: AsyncConnection, job: str, manifest: CheckpointManifest, verdict: Verdict
    ) -> None:
        try:
            record = await jobs.get(connection, job)
        except NotFound:
            return  # It was deleted meanwhile.
        now, checkpoint = self._clock.now(), f"the checkpoint at step {manifest.step}"
        if verdict.obstacle is not None:
            await checkpoints.set_verification(connection, job, manifest, now + AGAIN)
            message = f"{checkpoint} can't be verified and is kept: {verdict.obstacle}; the master tries again"
            if self._is_news(job, manifest):
                fields = about("checkpoint_unverified", job=job, attempt=manifest.attempt)
                _log.warning("job %s: %s", job, message, extra=fields)
                await events.add(connection, job, now, "checkpoint", message, attempt=manifest.attempt)
            return
        self._logged.discard((job, manifest.attempt, manifest.step))
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
        _log.warning("job %s: %s", job, message, extra=fields)
        await events.add(connection, job, now, "checkpoint", message, attempt=manifest.attempt)
        await jobs.release(connection, record, record.queued_at + _backoff(record.crashes))

    def _is_news(self, job: str, manifest: CheckpointManifest) -> bool:
        key = (job, manifest.attempt, manifest.step)
        news = key not in self._logged
        self._logged.add(key)
        return news


async def examine(blobs: Blobs, job: str, manifest: CheckpointManifest) -> Verdict:
    """Read all parts of a checkpoint and compare them with its manifest."""
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


def _backoff(crashes: int) -> timedelta:
    return timedelta(seconds=lifecycle.backoff_s(max(1, crashes)))
