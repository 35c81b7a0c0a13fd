"""The outbox of webhooks: stored in the transaction that ends a job, deleted after the delivery.

A job's row outlives its notifications, even if the job is deleted.
"""

from datetime import datetime

from sqlalchemy import delete, func, insert, literal, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.store.records import NotificationRecord, member, read, readable
from rolecall.master.store.schema import jobs, notifications
from rolecall.spec.state import JobState


async def add(connection: AsyncConnection, job: str, state: JobState, now: datetime) -> None:
    """Store a notification of the job's end, if the job asks for one."""
    moment = notifications.c.at.type
    values = (jobs.c.id, literal(str(state)), literal(now, moment), literal(now, moment), literal(0))
    wanted = select(*values).where(jobs.c.id == job, jobs.c.notify.is_not(None))
    await connection.execute(insert(notifications).from_select(["job", "state", "at", "next_at", "tries"], wanted))


async def due(connection: AsyncConnection, now: datetime, limit: int) -> list[NotificationRecord]:
    """Up to `limit` notifications to deliver now: the first of each owner, then the second ones, and so on.

    So the receivers of one owner, which may not answer, don't delay the notifications of others.
    """
    age = (notifications.c.next_at, notifications.c.id)
    turn = func.row_number().over(partition_by=jobs.c.owner, order_by=age)
    query = select(notifications, jobs.c.notify, jobs.c.owner).join(jobs, jobs.c.id == notifications.c.job)
    query = query.where(notifications.c.next_at <= now).order_by(turn, *age)
    rows = await connection.execute(query.limit(limit))
    return list(
        readable(rows, lambda row: read(NotificationRecord, row, state=member(JobState, row, "state")), "notification")
    )


async def postpone(connection: AsyncConnection, id: int, tries: int, next_at: datetime) -> None:
    """Record that a try begins, and the time of the next one."""
    await connection.execute(update(notifications).where(notifications.c.id == id).values(tries=tries, next_at=next_at))


async def remove(connection: AsyncConnection, id: int) -> None:
    """Remove a notification that is delivered or given up."""
    await connection.execute(delete(notifications).where(notifications.c.id == id))
