"""Checkpoints: the manifests that count."""

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, case, delete, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.store.schema import checkpoints
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
    values["bytes"] = sum(part.size for part in manifest.parts)
    await connection.execute(insert(checkpoints).values(**values, manifest=manifest, created_at=now))
    return True


async def of_job(connection: AsyncConnection, job: str) -> list[tuple[CheckpointManifest, datetime]]:
    """The checkpoints of `job` with the times of their recording, newest first."""
    order = (checkpoints.c.attempt.desc(), checkpoints.c.step.desc())
    query = select(checkpoints.c.manifest, checkpoints.c.created_at).where(checkpoints.c.job == job).order_by(*order)
    return [(manifest, at) for manifest, at in await connection.execute(query)]


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


def _key(job: str, manifest: CheckpointManifest) -> tuple[ColumnElement[bool], ...]:
    at: tuple[Any, ...] = (checkpoints.c.attempt == manifest.attempt, checkpoints.c.step == manifest.step)
    return checkpoints.c.job == job, *at
