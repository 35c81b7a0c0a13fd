"""The events of jobs."""

from datetime import datetime

from sqlalchemy import exists, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.store.records import EventRecord, read
from rolecall.master.store.schema import events

MAX_EVENTS = 1000
"""The maximum number of events of a job from the master, and of those from its workers."""


async def add(
    connection: AsyncConnection, job: str, at: datetime, kind: str, message: str, *, attempt: int | None = None
) -> None:
    await connection.execute(
        insert(events).values(job=job, at=at, attempt=attempt, kind=str(kind), message=_text(message))
    )


async def add_once(
    connection: AsyncConnection, job: str, at: datetime, message: str, *, attempt: int, origin: str
) -> None:
    """Store an event from a worker's stream at `origin`, unless it is stored already.

    If there are more than `MAX_EVENTS`, the last one says that later ones are not stored. The earliest ones stay, so
    that reading a stream again stores none twice.
    """
    count_stored = select(func.count()).where(events.c.job == job, events.c.origin.is_not(None))
    if (
        not await connection.scalar(select(exists().where(events.c.origin == origin)))
        and (count := await connection.scalar(count_stored) or 0) < MAX_EVENTS
    ):
        if count == MAX_EVENTS - 1:
            message = f"workers reported {MAX_EVENTS} events: later ones are in their logs only"
        values = {
            "job": job,
            "at": at,
            "attempt": attempt,
            "kind": "worker",
            "message": _text(message),
            "origin": origin,
        }
        await connection.execute(insert(events).values(values))


async def of_job(connection: AsyncConnection, job: str, after: int = 0) -> list[EventRecord]:
    """The events of `job` with ids above `after`, oldest first."""
    columns = [column for column in events.c if column.name != "origin"]
    query = select(*columns).where(events.c.job == job, events.c.id > after).order_by(events.c.id)
    return [read(EventRecord, row) for row in await connection.execute(query)]


def _text(message: str) -> str:
    return message.replace("\0", "\N{REPLACEMENT CHARACTER}")  # PostgreSQL's text has no NUL
