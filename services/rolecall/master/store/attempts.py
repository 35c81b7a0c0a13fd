from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Row, func, insert, or_, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.store import jobs as job_store
from rolecall.master.store import workers as worker_store
from rolecall.master.store.records import (
    TRACED_ATTEMPTS,
    AttemptRecord,
    AttemptSummary,
    Gang,
    JobSummary,
    UnreadableRow,
    member,
    read,
    readable,
)
from rolecall.master.store.schema import ENDED, attempts
from rolecall.master.store.types import Unreadable
from rolecall.spec.errors import NotFound, StaleAttempt
from rolecall.spec.plan import CheckpointManifest, GangPlan
from rolecall.spec.state import JobState, StopMode

_A = TypeVar("_A", bound=AttemptSummary)
_SUMMARY = tuple(attempts.c[one.name] for one in fields(AttemptSummary))


@dataclass(frozen=True, slots=True)
class Gangs:
    """The result of reading gangs."""

    found: list[Gang] = field(default_factory=list[Gang])
    unreadable: dict[str, str] = field(default_factory=dict[str, str])
    """Jobs whose attempt or workers can't be read, with the reason."""


async def begin(
    connection: AsyncConnection, job: JobSummary, plan: GangPlan, resume_from: CheckpointManifest | None, now: datetime
) -> None:
    """Commit a plan as the next attempt of a queued job."""
    number = job.attempt + 1
    placed = f"{plan.world_size} worker{'s' * (plan.world_size != 1)} placed"
    if number > 1:
        again = f"they resume from step {resume_from.step}" if resume_from else "they start again, without a checkpoint"
        placed += f"; {again}"
    await job_store.move(connection, job, JobState.PLACED, now, placed, attempt=number, reason=None)
    times = {"queued_at": job.queued_at, "started_at": now}
    values = {"job": job.id, "number": number, "plan": plan, "resume_from": resume_from, "state": JobState.PLACED}
    await connection.execute(insert(attempts).values(**values, **times))
    await worker_store.add(connection, job.id, number, plan)
    await worker_store.abridge(connection, job.id, number - TRACED_ATTEMPTS)


async def follow(connection: AsyncConnection, gang: Gang, state: JobState, **values: Any) -> None:
    """Change the attempt's state together with its job's.

    Raises `StaleAttempt` if the state or the mode of the stop has changed meanwhile.
    """
    attempt = gang.attempt
    # A mode of a newer release is read as another one.
    same_stop = or_(attempts.c.stop.is_not_distinct_from(attempt.stop), attempts.c.stop.not_in(tuple(StopMode)))
    guard = (*_key(gang.job.id, attempt.number), attempts.c.state == attempt.state, same_stop)
    changed = await connection.execute(update(attempts).where(*guard).values(state=state, **values))
    if changed.rowcount != 1:
        raise StaleAttempt(
            f"attempt {attempt.number} of job {gang.job.id} is no longer {attempt.state}, or its stop changed"
        )


async def set_port(connection: AsyncConnection, job: str, number: int, port: int) -> bool:
    """Store the port of the rendezvous unless there is one. Returns whether it was stored."""
    guard = (*_key(job, number), attempts.c.rendezvous_port.is_(None))
    changed = await connection.execute(update(attempts).where(*guard).values(rendezvous_port=port))
    return changed.rowcount == 1


async def stops_in_order(connection: AsyncConnection, job: str, number: int) -> bool:
    """True if the attempt's gang is asked to stop, so that its workers save a checkpoint and leave together."""
    others = (StopMode.ABORT, StopMode.COMPLETE)
    guard = (*_key(job, number), attempts.c.stop.is_not(None), attempts.c.stop.not_in(others))
    return await connection.scalar(select(attempts.c.number).where(*guard)) is not None


async def set_first_step(connection: AsyncConnection, job: str, number: int, at: datetime) -> None:
    """Store the time of the first optimizer step unless an earlier one is stored."""
    later = or_(attempts.c.first_step_at.is_(None), attempts.c.first_step_at > at)
    await connection.execute(update(attempts).where(*_key(job, number), later).values(first_step_at=at))


async def fail_unreadable(connection: AsyncConnection, job: str, cause: str, now: datetime) -> None:
    """End the attempts of a job that can't be read, regardless of their states."""
    guard = (attempts.c.job == job, attempts.c.state.not_in(ENDED), attempts.c.ended_at.is_(None))
    await connection.execute(update(attempts).where(*guard).values(state=JobState.FAILED, cause=cause, ended_at=now))


async def resumed_from(connection: AsyncConnection, job: JobSummary) -> CheckpointManifest | None:
    """The checkpoint that the job's current attempt resumed from. Raises `UnreadableRow`."""
    found = await connection.scalar(select(attempts.c.resume_from).where(*_key(job.id, job.attempt)))
    if isinstance(found, Unreadable):
        raise UnreadableRow("resume_from", found.why)
    return found


async def unswept(connection: AsyncConnection) -> dict[str, int]:
    """The newest ended attempt of each job whose unreferenced blobs are not deleted yet."""
    query = select(attempts.c.job, func.max(attempts.c.number)).group_by(attempts.c.job)
    rows = await connection.execute(query.where(attempts.c.swept.is_(False), attempts.c.ended_at.is_not(None)))
    return {row[0]: row[1] for row in rows}


async def set_swept(connection: AsyncConnection, job: str, number: int) -> None:
    """Record that the unreferenced blobs of the attempts up to `number` are deleted."""
    await connection.execute(
        update(attempts).where(attempts.c.job == job, attempts.c.number <= number).values(swept=True)
    )


async def unsweep(connection: AsyncConnection, job: str, numbers: Iterable[int]) -> None:
    """Record that these attempts have unreferenced blobs (again)."""
    chosen = (attempts.c.job == job, attempts.c.number.in_(tuple(numbers)))
    await connection.execute(update(attempts).where(*chosen).values(swept=False))


async def of_jobs(connection: AsyncConnection, jobs: Iterable[str]) -> list[AttemptSummary]:
    """All attempts of `jobs`, in order; one that can't be read is left out."""
    query = select(*_SUMMARY).where(attempts.c.job.in_(tuple(jobs))).order_by(attempts.c.job, attempts.c.number)
    rows = await connection.execute(query)
    return list(readable(rows, lambda row: _read(AttemptSummary, row), "attempt"))


async def lack_port(connection: AsyncConnection, keys: Iterable[tuple[str, int]]) -> set[tuple[str, int]]:
    """The attempts of `keys`, as `(job, number)`, that have no port yet."""
    key = tuple_(attempts.c.job, attempts.c.number)
    query = select(attempts.c.job, attempts.c.number).where(key.in_(tuple(keys)), attempts.c.rendezvous_port.is_(None))
    return {(row.job, row.number) for row in await connection.execute(query)}


async def gangs(connection: AsyncConnection, jobs: Iterable[JobSummary]) -> Gangs:
    """The gangs of those of `jobs` that have an attempt."""
    current = {(job.id, job.attempt): job for job in jobs if job.attempt}
    if not current:
        return Gangs()
    key = tuple_(attempts.c.job, attempts.c.number)
    rows = (await connection.execute(select(attempts).where(key.in_(tuple(current))))).all()
    members = await worker_store.rows_of(connection, tuple(current))
    gangs = Gangs()
    for row in rows:
        number = (row.job, row.number)
        try:
            workers = tuple(worker_store.record(one) for one in members.get(number, ()))
            attempt = _read(AttemptRecord, row)
            if len(workers) != attempt.plan.world_size:
                raise UnreadableRow("plan", f"it has {attempt.plan.world_size} workers, but {len(workers)} are stored")
            gangs.found.append(Gang(job=current[number], attempt=attempt, workers=workers))
        except UnreadableRow as error:
            gangs.unreadable[row.job] = f"of its attempt {row.number}, {error}"
    return gangs


async def gang(connection: AsyncConnection, job: JobSummary) -> Gang:
    """The gang of a placed job. Raises `NotFound` if it doesn't exist or can't be read."""
    read = await gangs(connection, [job])
    if not read.found:
        raise NotFound(read.unreadable.get(job.id, f"job {job.id} has no attempt {job.attempt}"))
    return read.found[0]


def _key(job: str, number: int) -> tuple[Any, Any]:
    return attempts.c.job == job, attempts.c.number == number


def _read(kind: type[_A], row: Row[Any]) -> _A:
    stop = None if row.stop is None else StopMode(row.stop)
    return read(kind, row, state=member(JobState, row, "state"), stop=stop)
