"""Marked jobs, and rows that expire."""

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import delete, exists, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.store.jobs import EPOCH, STATE
from rolecall.master.store.schema import ENDED, artifacts, attempts, checkpoints, idempotency, jobs, notifications
from rolecall.master.store.types import Unreadable
from rolecall.spec.state import JobState

_NOTIFIES = jobs.c.id.in_(select(notifications.c.job))


async def mark(connection: AsyncConnection, job: str, now: datetime) -> None:
    """Mark a job for deletion, which hides it as soon as it has ended."""
    unmarked = jobs.c.deleted_at.is_(None)
    await connection.execute(update(jobs).where(jobs.c.id == job, unmarked).values(deleted_at=now))
    await _free_keys(connection, [job])


async def mark_ended(connection: AsyncConnection, ids: Sequence[str], before: datetime, now: datetime) -> None:
    """Mark those of `ids` that ended before `before` and have not been retried since."""
    guard = (jobs.c.state.in_(ENDED), jobs.c.ended_at < before, jobs.c.deleted_at.is_(None))
    await connection.execute(update(jobs).where(jobs.c.id.in_(ids), *guard).values(deleted_at=now))
    await _free_keys(connection, ids)


async def is_marked(connection: AsyncConnection, job: str) -> bool:
    """Return whether the job exists and is marked for deletion."""
    query = select(jobs.c.deleted_at).where(jobs.c.id == job)
    return job.isprintable() and await connection.scalar(query) is not None


async def marked(connection: AsyncConnection, limit: int) -> list[str]:
    """Up to `limit` ended jobs that are marked for deletion, the oldest mark first.

    Left out are those of which only the row remains until their webhooks are sent or given up.
    """
    has_attempts = exists().where(attempts.c.job == jobs.c.id)
    # A comparison, because SQLite does not search an index for `IS NOT NULL`.
    query = select(jobs.c.id).where(jobs.c.deleted_at >= EPOCH, STATE.in_(ENDED), or_(has_attempts, ~_NOTIFIES))
    return list(await connection.scalars(query.order_by(jobs.c.deleted_at).limit(limit)))


async def remove(connection: AsyncConnection, ids: Sequence[str]) -> None:
    """Delete the rows of marked jobs and all rows that refer to them.

    If a webhook of a job is pending, which is made of the job's row and labels, delete only the rows of its files.
    """
    guard = (jobs.c.id.in_(ids), jobs.c.deleted_at.is_not(None))
    await connection.execute(delete(jobs).where(*guard, ~_NOTIFIES))
    for table in (checkpoints, artifacts, attempts):
        await connection.execute(delete(table).where(table.c.job.in_(select(jobs.c.id).where(*guard))))


async def ended(
    connection: AsyncConnection, before: datetime, states: Collection[JobState] = ENDED, owner: str | None = None
) -> list[tuple[str, str, JobState, datetime]]:
    """Id, name, state and end of each unmarked job (of `owner`) that ended before `before` in one of `states`.

    The oldest end comes first.
    """
    columns = (jobs.c.id, jobs.c.name, jobs.c.state, jobs.c.ended_at)
    guard = (jobs.c.state.in_(tuple(states)), jobs.c.ended_at < before, jobs.c.deleted_at.is_(None))
    guard = guard if owner is None else (*guard, jobs.c.owner == owner)
    rows = await connection.execute(select(*columns).where(*guard).order_by(jobs.c.ended_at, jobs.c.id))
    readable = (row for row in rows if not isinstance(row.ended_at, Unreadable))
    return [(row.id, row.name, JobState(row.state), row.ended_at) for row in readable]


async def recorded_sizes(connection: AsyncConnection, ids: Sequence[str]) -> Counter[str]:
    """Bytes of the recorded checkpoints and artifacts of each of `ids`."""
    blobs: dict[tuple[str, str], int] = {}
    manifests = select(checkpoints.c.job, checkpoints.c.manifest).where(checkpoints.c.job.in_(ids))
    for row in await connection.execute(manifests):
        if not isinstance(row.manifest, Unreadable):
            blobs |= {(row.job, part.blob): part.size for part in row.manifest.parts}
    files = select(artifacts.c.job, artifacts.c.blob, artifacts.c.size).where(artifacts.c.job.in_(ids))
    blobs |= {(row.job, row.blob): row.size for row in await connection.execute(files)}
    sizes: Counter[str] = Counter()
    for (job, _), size in blobs.items():
        sizes[job] += size
    return sizes


async def succeeded_with_checkpoints(connection: AsyncConnection, before: datetime) -> list[str]:
    """The jobs that succeeded before `before` and still have checkpoints."""
    query = select(jobs.c.id).where(jobs.c.state == JobState.SUCCEEDED, jobs.c.ended_at < before)
    return list(await connection.scalars(query.where(jobs.c.id.in_(select(checkpoints.c.job)))))


async def forget_keys(connection: AsyncConnection, before: datetime) -> None:
    """Delete the idempotency keys that were stored before `before`."""
    await connection.execute(delete(idempotency).where(idempotency.c.created_at < before))


async def _free_keys(connection: AsyncConnection, ids: Sequence[str]) -> None:
    """Delete the idempotency keys of marked jobs in `ids`, so that the same request creates a new job."""
    marked = select(jobs.c.id).where(jobs.c.id.in_(ids), jobs.c.deleted_at.is_not(None))
    await connection.execute(delete(idempotency).where(idempotency.c.job.in_(marked)))
