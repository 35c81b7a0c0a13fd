"""Attempts and gangs: one try at a job."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.store import jobs as job_store
from rolecall.master.store import workers as worker_store
from rolecall.master.store.records import AttemptRecord, Gang, JobRecord, read
from rolecall.master.store.schema import attempts
from rolecall.spec.errors import StaleAttempt
from rolecall.spec.plan import CheckpointManifest, GangPlan
from rolecall.spec.state import JobState, StopMode


async def begin(
    connection: AsyncConnection, job: JobRecord, plan: GangPlan, resume_from: CheckpointManifest | None, now: datetime
) -> None:
    """Commit a plan as the next attempt of a queued job."""
    number = job.attempt + 1
    await job_store.move(
        connection, job, JobState.PLACED, now, f"{plan.world_size} workers placed", attempt=number, reason=None
    )
    times = {"queued_at": job.queued_at, "started_at": now}
    values = {"job": job.id, "number": number, "plan": plan, "resume_from": resume_from, "state": JobState.PLACED}
    await connection.execute(insert(attempts).values(**values, **times))
    await worker_store.add(connection, job.id, number, plan)


async def follow(connection: AsyncConnection, gang: Gang, state: JobState, **values: Any) -> None:
    """Let the attempt's state follow its job's; raises `StaleAttempt` when it changed meanwhile."""
    guard = (*_key(gang.job.id, gang.attempt.number), attempts.c.state == gang.attempt.state)
    changed = await connection.execute(update(attempts).where(*guard).values(state=state, **values))
    if changed.rowcount != 1:
        raise StaleAttempt(f"attempt {gang.attempt.number} of job {gang.job.id} is no longer {gang.attempt.state}")


async def set_port(connection: AsyncConnection, job: str, number: int, port: int) -> bool:
    """Store where the gang meets; the first word counts. Returns whether it was the first."""
    guard = (*_key(job, number), attempts.c.rendezvous_port.is_(None))
    changed = await connection.execute(update(attempts).where(*guard).values(rendezvous_port=port))
    return changed.rowcount == 1


async def set_first_step(connection: AsyncConnection, job: str, number: int, at: datetime) -> None:
    """Store when the first optimizer step was done; the earliest word counts."""
    later = or_(attempts.c.first_step_at.is_(None), attempts.c.first_step_at > at)
    await connection.execute(update(attempts).where(*_key(job, number), later).values(first_step_at=at))


async def resumed_from(connection: AsyncConnection, job: JobRecord) -> CheckpointManifest | None:
    """The checkpoint that the job's current attempt resumed from."""
    return await connection.scalar(select(attempts.c.resume_from).where(*_key(job.id, job.attempt)))


async def unswept(connection: AsyncConnection) -> dict[str, int]:
    """The newest ended attempt of each job that left something in the blob store which is not deleted yet."""
    query = select(attempts.c.job, func.max(attempts.c.number)).group_by(attempts.c.job)
    rows = await connection.execute(query.where(attempts.c.swept.is_(False), attempts.c.ended_at.is_not(None)))
    return {row[0]: row[1] for row in rows}


async def set_swept(connection: AsyncConnection, job: str, number: int, swept: bool = True) -> None:
    """Note whether what the attempts up to `number` left is deleted."""
    await connection.execute(
        update(attempts).where(attempts.c.job == job, attempts.c.number <= number).values(swept=swept)
    )


async def of_jobs(connection: AsyncConnection, jobs: Iterable[str]) -> list[AttemptRecord]:
    """All attempts of `jobs`, in order."""
    query = select(attempts).where(attempts.c.job.in_(tuple(jobs))).order_by(attempts.c.job, attempts.c.number)
    return [_record(row) for row in await connection.execute(query)]


async def gangs(connection: AsyncConnection, jobs: Sequence[JobRecord]) -> list[Gang]:
    """Each of `jobs` that was ever placed, with its current attempt and workers."""
    current = {(job.id, job.attempt): job for job in jobs}
    found = [a for a in await of_jobs(connection, {job.id for job in jobs}) if (a.job, a.number) in current]
    members = await worker_store.of_attempts(connection, [(a.job, a.number) for a in found])
    return [
        Gang(job=current[a.job, a.number], attempt=a, workers=tuple(members.get((a.job, a.number), ()))) for a in found
    ]


async def gang(connection: AsyncConnection, job: JobRecord) -> Gang:
    """A placed job with its current attempt and workers."""
    return (await gangs(connection, [job]))[0]


def _key(job: str, number: int) -> tuple[Any, Any]:
    return attempts.c.job == job, attempts.c.number == number


def _record(row: Row[Any]) -> AttemptRecord:
    stop = None if row.stop is None else StopMode(row.stop)
    return read(AttemptRecord, row, state=JobState(row.state), stop=stop)
