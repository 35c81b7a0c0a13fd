"""The statements of the jobs table, including the transition of a job to another state."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, TypeVar, cast

from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    bindparam,
    case,
    exists,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.store import events, labels, notifications
from rolecall.master.store.records import (
    EndedJob,
    JobEntry,
    JobRecord,
    JobSummary,
    UnreadableRow,
    member,
    read,
    readable,
)
from rolecall.master.store.schema import ENDED, LIVE, artifacts, checkpoints, jobs, workers
from rolecall.master.store.types import Unreadable
from rolecall.spec.access import ADMIN
from rolecall.spec.errors import NotFound, StaleAttempt
from rolecall.spec.job import JobSpec, Progress
from rolecall.spec.state import JobState, check_transition

_J = TypeVar("_J", bound=JobEntry)
_SUMMARY_NAMES = tuple(one.name for one in fields(JobSummary))
_SUMMARY = tuple(jobs.c[name] for name in _SUMMARY_NAMES)
MAX_READ_CHARS = 16 << 10
"""The length up to which a progress or a result is read with those of many other jobs; 160 metrics have 100 each.

They are parsed on the event loop, and a user can make each of them longer than a mebibyte.
"""
_BOUNDED_PROGRESS = case(
    (func.length(jobs.c.progress) <= MAX_READ_CHARS, jobs.c.progress),
    else_=literal(Progress(), jobs.c.progress.type),
).label("progress")
_BOUNDED_RESULT = case((func.length(jobs.c.result) <= MAX_READ_CHARS, jobs.c.result)).label("result")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STATE = jobs.c.state + literal_column("''")
"""The state, for statements in which SQLite would otherwise choose the index of states and fetch all ended jobs."""
# Replacements for values that can't be read, so that the job can be shown.
_EMPTY: Mapping[str, Any] = {
    "params": {},
    "roles": {},
    "resources": {},
    "progress": Progress(),
    "created_at": EPOCH,
    "queued_at": EPOCH,
}


@dataclass(slots=True)
class Summaries:
    """The result of reading live jobs."""

    live: dict[str, JobSummary] = field(default_factory=dict[str, JobSummary])
    """The readable ones, oldest first."""
    unreadable: dict[str, str] = field(default_factory=dict[str, str])
    """The unreadable ones, with the reason."""
    last: int | None = None
    """The sequence number of the last row; None if there is none."""


async def add(connection: AsyncConnection, spec: JobSpec, now: datetime, owner: str = ADMIN) -> JobRecord:
    """Store a new job of `owner` as queued."""
    own = {"resources": spec.resources, "owner": owner, "bytes": len(spec.model_dump_json())}
    values = (
        spec.model_dump(exclude={"labels"})
        | own
        | {"state": JobState.QUEUED, "attempt": 0, "restarts": 0, "crashes": 0}
    )
    times = {"created_at": now, "queued_at": now, "deadline_at": _deadline(spec.deadline_s, now)}
    await connection.execute(insert(jobs).values(progress=Progress(), **values, **times))
    await labels.put(connection, spec.id, spec.labels)
    await events.add(connection, spec.id, now, JobState.QUEUED, f"submitted by {owner}")
    return await get(connection, spec.id)


async def get(connection: AsyncConnection, job: str, *, hidden: bool = False) -> JobRecord:
    """The job, with `hidden` even if it has ended and is marked for deletion. Raises `NotFound`."""
    found = await find(connection, job, hidden=hidden)
    if found is None:
        raise unknown(job)
    return found


async def find(connection: AsyncConnection, job: str, *, hidden: bool = False) -> JobRecord | None:
    row = await _row(connection, job, tuple(jobs.c), hidden=hidden)
    return None if row is None else shown(JobRecord, row)


def unknown(job: str) -> NotFound:
    """The error for a job that doesn't exist or that the caller can't see."""
    return NotFound(f"there is no job {job!r}; `rolecall jobs` lists them")


async def in_states(connection: AsyncConnection, states: Iterable[JobState]) -> list[str]:
    """The ids of all jobs in one of `states`, oldest first."""
    query = select(jobs.c.id).where(jobs.c.state.in_(tuple(states))).order_by(jobs.c.sequence)
    return list(await connection.scalars(query))


async def live(
    connection: AsyncConnection, among: Collection[str] | None = None, *, after: int = -1, limit: int | None = None
) -> Summaries:
    """The jobs that have not ended, of `among` or of all; up to `limit` after the sequence number `after`.

    A job in a state that this release doesn't know counts as unreadable.
    """
    query = select(*_SUMMARY, _BOUNDED_PROGRESS).where(LIVE, jobs.c.sequence > after)
    query = query if among is None else query.where(jobs.c.id.in_(tuple(among)))
    found = Summaries()
    for row in await connection.execute(query.order_by(jobs.c.sequence).limit(limit)):
        found.last = row.sequence
        try:
            found.live[row.id] = _summary(row)
        except UnreadableRow as error:
            found.unreadable[row.id] = str(error)
    return found


async def summary(connection: AsyncConnection, job: str) -> JobSummary:
    """The job without large values. Raises `NotFound`."""
    row = await _row(connection, job, _SUMMARY)
    if row is None:
        raise unknown(job)
    try:
        return _summary(row)
    except UnreadableRow:
        return await get(connection, job)


async def owner(connection: AsyncConnection, job: str) -> str:
    """The owner of the job, even if it has ended and is marked for deletion. Raises `NotFound`."""
    found = await connection.scalar(select(jobs.c.owner).where(jobs.c.id == job)) if job.isprintable() else None
    if found is None:
        raise unknown(job)
    return found


async def parameters(connection: AsyncConnection, among: Iterable[str]) -> dict[str, dict[str, Any]]:
    query = select(jobs.c.id, jobs.c.params).where(jobs.c.id.in_(tuple(among)))
    return {row.id: {} if isinstance(row.params, Unreadable) else row.params for row in await connection.execute(query)}


async def succeeded(
    connection: AsyncConnection, workload: str, node: str, owners: Collection[str], limit: int
) -> list[str]:
    """The ids of up to `limit` jobs of `owners` that succeeded with a worker on `node`, newest first."""
    on_node = exists().where(workers.c.job == jobs.c.id, workers.c.attempt == jobs.c.attempt, workers.c.node == node)
    chosen = (jobs.c.workload == workload, jobs.c.state == JobState.SUCCEEDED, jobs.c.owner.in_(owners))
    query = select(jobs.c.id).where(*chosen, visible(), on_node).order_by(jobs.c.sequence.desc())
    return list(await connection.scalars(query.limit(limit)))


async def count_by_state(connection: AsyncConnection) -> dict[JobState, int]:
    """The number of jobs in each state, including zeros."""
    rows = await connection.execute(select(STATE, func.count()).where(visible()).group_by(STATE))
    return dict.fromkeys(JobState, 0) | {JobState(state): count for state, count in rows if state in set(JobState)}


async def progress_of(connection: AsyncConnection, ids: Collection[str]) -> dict[str, Progress]:
    """The stored progress of `ids`, without unknown jobs, and progress that is unreadable or too long."""
    if not ids:
        return {}
    bounded = func.length(jobs.c.progress) <= MAX_READ_CHARS
    rows = await connection.execute(select(jobs.c.id, jobs.c.progress).where(jobs.c.id.in_(tuple(ids)), bounded))
    return {row.id: row.progress for row in rows if not isinstance(row.progress, Unreadable)}


async def recently_ended(connection: AsyncConnection, since: datetime, *, limit: int, among: int) -> list[EndedJob]:
    """Up to `limit` jobs that ended after `since`, of the `among` newest jobs, so that no index is necessary.

    They are the newest of each owner, then the second ones, and so on, so that no owner can hide the jobs of others.
    Progress and results that are too long are left out.
    """
    newest = select(func.max(jobs.c.sequence)).scalar_subquery()
    names = tuple(one.name for one in fields(EndedJob))
    chosen = (visible(), jobs.c.sequence > newest - among, jobs.c.state.in_(ENDED), jobs.c.ended_at >= since)
    turn = func.row_number().over(partition_by=jobs.c.owner, order_by=jobs.c.sequence.desc())
    chosen_ids = select(jobs.c.id).where(*chosen).order_by(turn, jobs.c.sequence.desc()).limit(limit)
    columns = {"progress": _BOUNDED_PROGRESS, "result": _BOUNDED_RESULT}
    rows = await connection.execute(
        select(*(columns.get(name, jobs.c[name]) for name in names))
        .where(jobs.c.id.in_(chosen_ids))
        .order_by(jobs.c.sequence.desc())
    )
    return list(readable(rows, lambda row: read(EndedJob, row, names, state=member(JobState, row, "state")), "job"))


async def count_waiting(connection: AsyncConnection, owner: str) -> int:
    """The number of queued or paused jobs of `owner`."""
    owned = (LIVE, jobs.c.owner == owner, jobs.c.state.in_((JobState.QUEUED, JobState.PAUSED)))
    return await connection.scalar(select(func.count()).where(*owned)) or 0


async def holding_slots(connection: AsyncConnection, owner: str) -> list[str]:
    """The ids of the jobs of `owner` that hold slots."""
    states = tuple(state for state in JobState if state.holds_slots)
    owned = (LIVE, jobs.c.owner == owner, jobs.c.state.in_(states))
    return list(await connection.scalars(select(jobs.c.id).where(*owned)))


async def stored_bytes(connection: AsyncConnection, owner: str, exclude: Iterable[str] = ()) -> int:
    """The total size of the requests, recorded checkpoints and artifacts of the jobs of `owner`, except `exclude`.

    Requests count because a user can cancel jobs at once and submit any number.
    """
    owned = (jobs.c.owner == owner, jobs.c.id.not_in(tuple(exclude)))
    of_checkpoints = select(func.sum(checkpoints.c.bytes)).join(jobs, jobs.c.id == checkpoints.c.job)
    of_artifacts = select(func.sum(artifacts.c.size)).join(jobs, jobs.c.id == artifacts.c.job)
    of_requests = select(func.sum(jobs.c.bytes))
    sums = [await connection.scalar(query.where(*owned)) for query in (of_requests, of_checkpoints, of_artifacts)]
    return sum(int(found or 0) for found in sums)


async def move(
    connection: AsyncConnection, job: JobSummary, after: JobState, now: datetime, message: str, **values: Any
) -> None:
    """Change `job` from the state of the record to `after`, and store an event.

    Raises `IllegalTransition` if the transition is not allowed, and `StaleAttempt` if the job has changed meanwhile.
    """
    check_transition(job.state, after)
    ended = {"ended_at": now} if after.ended else {}
    waits = {} if after is JobState.QUEUED else {"waiting_for": None, "not_before": None}
    await _change(connection, job, {"state": after} | ended | waits | values)
    if after.ended:
        await notifications.add(connection, job.id, after, now)
    await events.add(connection, job.id, now, after, message, attempt=values.get("attempt", job.attempt) or None)


async def requeue(
    connection: AsyncConnection,
    job: JobSummary,
    now: datetime,
    reason: str | None,
    wait_s: float,
    *,
    waits_for: str | None = None,
    **values: Any,
) -> None:
    """Queue `job` again, and delay its placement by `wait_s` seconds for the reason `waits_for`."""
    wait = (waits_for or f"a back-off of {wait_s:.1f} s after a failed attempt") if wait_s else None
    times = {"queued_at": now, "not_before": now + timedelta(seconds=wait_s) if wait_s else None, "ended_at": None}
    await move(
        connection,
        job,
        JobState.QUEUED,
        now,
        reason or "queued again",
        reason=reason,
        waiting_for=wait,
        **times,
        **values,
    )


async def renew(connection: AsyncConnection, job: JobSummary, now: datetime, reason: str) -> None:
    """Queue an ended job again at a user's request, with all restarts and a new deadline."""
    deadline = _deadline(job.deadline_s, now)
    await requeue(
        connection, job, now, reason, 0.0, restarts=0, crashes=0, deadline_at=deadline, result=None, avoid=None
    )


async def set_waiting(connection: AsyncConnection, reasons: Iterable[tuple[JobSummary, str]]) -> None:
    """Store the reasons why jobs are queued. Jobs that are no longer queued don't change."""
    guard = (jobs.c.id == bindparam("job"), jobs.c.state == JobState.QUEUED, jobs.c.attempt == bindparam("number"))
    values = [{"job": job.id, "number": job.attempt, "why": reason} for job, reason in reasons]
    await connection.execute(update(jobs).where(*guard).values(waiting_for=bindparam("why")), values)


async def fail_unreadable(connection: AsyncConnection, job: str, reason: str, now: datetime) -> bool:
    """End a job that can't be read, regardless of its state. Returns whether it had not ended."""
    values = {"state": JobState.FAILED, "reason": reason, "ended_at": now, "waiting_for": None, "not_before": None}
    changed = await connection.execute(update(jobs).where(jobs.c.id == job, jobs.c.state.not_in(ENDED)).values(values))
    if changed.rowcount == 1:
        await notifications.add(connection, job, JobState.FAILED, now)
        await events.add(connection, job, now, JobState.FAILED, reason)
    return changed.rowcount == 1


async def change(connection: AsyncConnection, job: str, **values: Any) -> None:
    """Change the name or the priority of a job, regardless of its state."""
    if values:  # A change of labels alone has none.
        await connection.execute(update(jobs).where(jobs.c.id == job).values(values))


async def set_reason(connection: AsyncConnection, job: JobSummary, reason: str | None) -> None:
    """Change the reason of the state of `job`. Raises `StaleAttempt` if the job has changed meanwhile."""
    await _change(connection, job, {"reason": reason})


async def _change(connection: AsyncConnection, job: JobSummary, values: Mapping[str, Any]) -> None:
    guard = (jobs.c.id == job.id, jobs.c.state == job.state, jobs.c.attempt == job.attempt)
    changed = await connection.execute(update(jobs).where(*guard).values(dict(values)))
    if changed.rowcount != 1:
        raise StaleAttempt(f"job {job.id} is no longer {job.state} in attempt {job.attempt}")


async def avoid(connection: AsyncConnection, job: JobSummary, nodes: Iterable[str]) -> None:
    """Make the next attempts avoid these nodes if possible."""
    avoided = tuple(sorted({*(job.avoid or ()), *nodes}))
    await connection.execute(update(jobs).where(jobs.c.id == job.id).values(avoid=avoided))


async def release(connection: AsyncConnection, job: JobSummary, not_before: datetime) -> None:
    """Allow the placement of a queued job from `not_before`. A job that is no longer queued doesn't change."""
    guard = (jobs.c.id == job.id, jobs.c.state == JobState.QUEUED, jobs.c.attempt == job.attempt)
    await connection.execute(update(jobs).where(*guard).values(not_before=not_before, waiting_for=None))


async def set_progress(connection: AsyncConnection, job: str, progress: Progress) -> None:
    await connection.execute(update(jobs).where(jobs.c.id == job).values(progress=progress))


async def set_result(connection: AsyncConnection, job: str, attempt: int, result: dict[str, float]) -> None:
    """Store the result of `attempt` if it is the current one."""
    await connection.execute(update(jobs).where(jobs.c.id == job, jobs.c.attempt == attempt).values(result=result))


def visible() -> ColumnElement[bool]:
    """The condition that hides ended jobs that are marked for deletion."""
    return or_(jobs.c.deleted_at.is_(None), jobs.c.state.not_in(ENDED))


def _deadline(deadline_s: float | None, now: datetime) -> datetime | None:
    return None if deadline_s is None else now + timedelta(seconds=deadline_s)


async def _row(
    connection: AsyncConnection, job: str, columns: tuple[Any, ...], *, hidden: bool = False
) -> Row[Any] | None:
    # PostgreSQL rejects text with NUL, and no id has one.
    found = await connection.execute(_by_id(columns, hidden), {"job": job}) if job.isprintable() else None
    return None if found is None else found.one_or_none()


@cache
def _by_id(columns: tuple[Any, ...], hidden: bool) -> Select[Any]:
    """The statement, cached because it takes longer to build than to run."""
    query = cast(Select[Any], select(*columns)).where(jobs.c.id == bindparam("job"))
    return query if hidden else query.where(visible())


def _summary(row: Row[Any]) -> JobSummary:
    return read(JobSummary, row, _SUMMARY_NAMES, state=member(JobState, row, "state"))


def shown(kind: type[_J], row: Row[Any]) -> _J:
    """The job, with empty values instead of unreadable ones, so that it can be shown."""
    found = row._asdict()  # pyright: ignore[reportPrivateUsage] - public, as in namedtuple
    broken = {column: value.why for column, value in found.items() if isinstance(value, Unreadable)}
    try:
        state, why = member(JobState, row, "state"), None
    except UnreadableRow as error:
        state, why = JobState.FAILED, str(error)
    why = why or next((str(UnreadableRow(column, reason)) for column, reason in broken.items()), None)
    values: dict[str, Any] = (
        found | {column: _EMPTY.get(column) for column in broken} | {"state": state, "unreadable": why}
    )
    return kind(**values)
