from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import ColumnElement, and_, delete, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.store.records import EventRecord, read
from rolecall.master.store.schema import events
from rolecall.spec.api import RETENTION, WORKER

MAX_EVENTS = 1000
"""The maximum number of events of a job from the master, and of those from its workers."""
MAX_DELETIONS = 1
"""The number of events about deleted old checkpoints that a job keeps, besides the others: the newest. With one for
each checkpoint, a long job would have little else in its list."""
_TRIM_EVERY = 64
"""The excess of events from the master that is kept for a while, so that not every new one costs a deletion."""


class WorkerEvent(NamedTuple):
    """An event that a worker reported."""

    origin: str
    """Its position in the worker's stream."""
    at: datetime
    message: str


EXPORTS = ("trace", "mlflow", "tensorboard")
"""The kinds of events that record exports. They are never trimmed: there are only as many as ends of the job."""
_DELETIONS = and_(events.c.origin.is_(None), events.c.kind == RETENTION)
_OTHERS = and_(events.c.origin.is_(None), events.c.kind.not_in((*EXPORTS, RETENTION)))


async def add(
    connection: AsyncConnection, job: str, at: datetime, kind: str, message: str, *, attempt: int | None = None
) -> None:
    """Store an event from the master. A job keeps about the newest `MAX_EVENTS`, because users can cause any number.

    Those about deleted old checkpoints count apart, so that the frequent ones of a long job displace no others.
    """
    values = {"job": job, "at": at, "attempt": attempt, "kind": str(kind), "message": _text(message)}
    (id,) = (await connection.execute(insert(events).values(values))).inserted_primary_key or (0,)
    if kind == RETENTION:
        await _keep(connection, job, _DELETIONS, MAX_DELETIONS)
    elif id % _TRIM_EVERY == 0:
        await _keep(connection, job, _OTHERS, MAX_EVENTS)


async def trim_all(connection: AsyncConnection) -> None:
    """Delete the events of all jobs above the limits that the master itself stored."""
    for which, limit in ((_DELETIONS, MAX_DELETIONS), (_OTHERS, MAX_EVENTS)):
        crowded = select(events.c.job).where(which).group_by(events.c.job).having(func.count() > limit)
        for job in list(await connection.scalars(crowded)):
            await _keep(connection, job, which, limit)


async def _keep(connection: AsyncConnection, job: str, which: ColumnElement[bool], limit: int) -> None:
    """Delete all but the newest `limit` of these events of a job."""
    of_job = and_(events.c.job == job, which)
    newest = select(events.c.id).where(of_job).order_by(events.c.id.desc())
    oldest_kept = await connection.scalar(newest.offset(limit - 1).limit(1))
    if oldest_kept is not None:
        await connection.execute(delete(events).where(of_job, events.c.id < oldest_kept))


async def add_once(connection: AsyncConnection, job: str, attempt: int, reported: Sequence[WorkerEvent]) -> bool:
    """Store events from a worker's stream, except stored ones. Returns whether the job can have no more of them.

    If there are more than `MAX_EVENTS`, the last one says that later ones are not stored. The earliest ones stay, so
    that reading a stream again stores none twice.
    """
    of_workers = select(events.c.origin).where(events.c.job == job, events.c.origin.is_not(None))
    known = set(await connection.scalars(of_workers))
    fresh = [one for one in reported if one.origin not in known][: max(0, MAX_EVENTS - len(known))]
    is_full = len(known) + len(fresh) >= MAX_EVENTS
    if fresh and is_full:
        notice = f"workers reported {MAX_EVENTS} events: later ones are in their logs only"
        fresh[-1] = fresh[-1]._replace(message=notice)
    if fresh:
        values = {"job": job, "attempt": attempt, "kind": WORKER}
        rows = [values | {"at": one.at, "message": _text(one.message), "origin": one.origin} for one in fresh]
        await connection.execute(insert(events), rows)
    return is_full


async def of_job(connection: AsyncConnection, job: str, after: int = 0) -> list[EventRecord]:
    """The events of `job` with ids above `after`, oldest first."""
    columns = [column for column in events.c if column.name != "origin"]
    query = select(*columns).where(events.c.job == job, events.c.id > after).order_by(events.c.id)
    return [read(EventRecord, row) for row in await connection.execute(query)]


def _text(message: str) -> str:
    return message.replace("\0", "\N{REPLACEMENT CHARACTER}")  # PostgreSQL's text has no NUL
