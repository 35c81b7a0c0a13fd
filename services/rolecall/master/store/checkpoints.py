"""Recorded checkpoints."""

from collections.abc import Collection
from dataclasses import fields
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, case, delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.store.jobs import visible
from rolecall.master.store.records import CheckpointRecord, read, readable
from rolecall.master.store.schema import checkpoints, jobs
from rolecall.master.store.types import Unreadable
from rolecall.spec.errors import Conflict
from rolecall.spec.plan import CheckpointManifest

_RECORD = tuple(one.name for one in fields(CheckpointRecord))


async def add(connection: AsyncConnection, job: str, manifest: CheckpointManifest, now: datetime) -> bool:
    """Record a checkpoint; return False if it is recorded already. Raises `Conflict` if the step has another one."""
    known = await connection.scalar(select(checkpoints.c.manifest).where(*_key(job, manifest)))
    if known is not None and known != manifest:
        raise Conflict(f"attempt {manifest.attempt} has already recorded another checkpoint for step {manifest.step}")
    if known is not None:
        return False
    values = {"job": job, "attempt": manifest.attempt, "step": manifest.step, "keep": manifest.keep}
    values["bytes"] = sum(part.size for part in manifest.parts)
    await connection.execute(insert(checkpoints).values(**values, manifest=manifest, created_at=now))
    return True


async def of_job(connection: AsyncConnection, job: str) -> list[CheckpointRecord]:
    """The readable checkpoints of `job`, newest first."""
    rows = await connection.execute(_of_job(job))
    return list(readable(rows, lambda row: read(CheckpointRecord, row, _RECORD), "checkpoint"))


async def has_unreadable(connection: AsyncConnection, job: str) -> bool:
    """Return whether `job` has a checkpoint that can't be read, so that its blobs are unknown."""
    return any(isinstance(value, Unreadable) for row in await connection.execute(_of_job(job)) for value in row)


async def newest(connection: AsyncConnection, job: str, *, undoubted: bool = False) -> CheckpointManifest | None:
    """The checkpoint from which the next attempt resumes, if there is one.

    With `undoubted`, one that no worker reported as damaged if possible.
    """
    found = await of_job(connection, job)
    preferred = [one for one in found if one.verify_at is None] if undoubted else []
    return next((one.manifest for one in preferred or found), None)


async def newest_times(connection: AsyncConnection, jobs: Collection[str]) -> dict[str, datetime]:
    """The time of the newest checkpoint of each of `jobs` that has one."""
    if not jobs:
        return {}
    query = select(checkpoints.c.job, func.max(checkpoints.c.created_at)).group_by(checkpoints.c.job)
    return {row[0]: row[1] for row in await connection.execute(query.where(checkpoints.c.job.in_(tuple(jobs))))}


async def set_verification(
    connection: AsyncConnection, job: str, manifest: CheckpointManifest, at: datetime | None
) -> bool:
    """Schedule the verification of a checkpoint at `at`, or cancel it. Returns whether the checkpoint exists."""
    changed = await connection.execute(update(checkpoints).where(*_key(job, manifest)).values(verify_at=at))
    return changed.rowcount == 1


async def due_for_verification(connection: AsyncConnection, by: datetime) -> list[tuple[str, str, CheckpointManifest]]:
    """The readable checkpoints, each with its job and the job's owner, whose verification is due at `by`.

    A deleted job has none, because nobody would reschedule its verification.
    """
    query = select(jobs.c.owner, checkpoints.c.job, checkpoints.c.manifest)
    query = query.where(checkpoints.c.verify_at <= by, visible())
    rows = await connection.execute(query.join_from(checkpoints, jobs).order_by(checkpoints.c.verify_at))
    return [(row.owner, row.job, row.manifest) for row in rows if not isinstance(row.manifest, Unreadable)]


async def crowded_jobs(connection: AsyncConnection, keep: int) -> list[str]:
    """The jobs with more than `keep` checkpoints, not counting one that the workload marks as kept."""
    kept = func.count(case((checkpoints.c.keep.is_(True), 1)))
    query = select(checkpoints.c.job).group_by(checkpoints.c.job)
    return list(await connection.scalars(query.having(func.count() > keep + case((kept > 0, 1), else_=0))))


async def remove(connection: AsyncConnection, job: str, manifest: CheckpointManifest) -> None:
    await connection.execute(delete(checkpoints).where(*_key(job, manifest)))


def _of_job(job: str) -> Select[Any]:
    columns = [checkpoints.c[name] for name in ("job", "attempt", "step", *_RECORD)]
    order = (checkpoints.c.attempt.desc(), checkpoints.c.step.desc())
    return select(*columns).where(checkpoints.c.job == job).order_by(*order)


def _key(job: str, manifest: CheckpointManifest) -> tuple[ColumnElement[bool], ...]:
    at: tuple[Any, ...] = (checkpoints.c.attempt == manifest.attempt, checkpoints.c.step == manifest.step)
    return checkpoints.c.job == job, *at
