"""Checkpoints: the manifests that count."""

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, case, delete, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.store.records import read, readable
from rolecall.master.store.schema import checkpoints
from rolecall.master.store.types import Unreadable
from rolecall.spec.errors import Conflict
from rolecall.spec.plan import CheckpointManifest


async def add(connection: AsyncConnection, job: str, manifest: CheckpointManifest, now: datetime) -> bool:
    """Record a checkpoint; return False if it was recorded before. Another one for the same step is a `Conflict`."""
    known = await connection.scalar(select(checkpoints.c.manifest).where(*_key(job, manifest)))
    if known is not None and known != manifest:
        raise Conflict(f"attempt {manifest.attempt} has already recorded another checkpoint for step {manifest.step}")
    if known is not None:
        return False
    values = {"job": job, "attempt": manifest.attempt, "step": manifest.step, "keep": manifest.keep}
    await connection.execute(insert(checkpoints).values(**values, manifest=manifest, created_at=now))
    return True


async def of_job(connection: AsyncConnection, job: str) -> list[tuple[CheckpointManifest, datetime]]:
    """The checkpoints of `job` with the times of their recording, newest first; one that can't be read is left out."""
    rows = await connection.execute(_of_job(job))
    return list(readable(rows, lambda row: read(_Recorded, row).pair, "checkpoint"))


async def has_unreadable(connection: AsyncConnection, job: str) -> bool:
    """Whether `job` has a checkpoint that can't be read: then nobody knows which blobs it needs."""
    return any(isinstance(row.manifest, Unreadable) for row in await connection.execute(_of_job(job)))


async def newest(connection: AsyncConnection, job: str) -> CheckpointManifest | None:
    """Where the next attempt starts, if there is such a place."""
    return next((manifest for manifest, _ in await of_job(connection, job)), None)


async def crowded_jobs(connection: AsyncConnection, most: int) -> list[str]:
    """The jobs that have more than `most` checkpoints, where one that is to be kept may be beside those."""
    kept = func.count(case((checkpoints.c.keep.is_(True), 1)))
    query = select(checkpoints.c.job).group_by(checkpoints.c.job)
    return list(await connection.scalars(query.having(func.count() > most + case((kept > 0, 1), else_=0))))


async def remove(connection: AsyncConnection, job: str, manifest: CheckpointManifest) -> None:
    """Forget a checkpoint."""
    await connection.execute(delete(checkpoints).where(*_key(job, manifest)))


@dataclass(frozen=True, slots=True)
class _Recorded:
    job: str
    attempt: int
    step: int
    manifest: CheckpointManifest
    created_at: datetime

    @property
    def pair(self) -> tuple[CheckpointManifest, datetime]:
        return self.manifest, self.created_at


def _of_job(job: str) -> Select[Any]:
    columns = [checkpoints.c[one.name] for one in fields(_Recorded)]
    order = (checkpoints.c.attempt.desc(), checkpoints.c.step.desc())
    return select(*columns).where(checkpoints.c.job == job).order_by(*order)


def _key(job: str, manifest: CheckpointManifest) -> tuple[ColumnElement[bool], ...]:
    at: tuple[Any, ...] = (checkpoints.c.attempt == manifest.attempt, checkpoints.c.step == manifest.step)
    return checkpoints.c.job == job, *at
