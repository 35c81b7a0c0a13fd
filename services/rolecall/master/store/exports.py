"""The jobs that are to be exported to another program, by the events of jobs."""

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.store.schema import ENDED, events, jobs


async def due(
    connection: AsyncConnection, kind: str, since: datetime, limit: int, *, without: Collection[str] = ()
) -> list[str]:
    """Up to `limit` jobs that ended after `since` without an event of `kind` since then: the first of each owner, then
    the second ones, and so on.

    So an owner who submits and cancels jobs all the time doesn't delay the exports of others until they are dropped.
    """
    exported = select(events.c.id).where(
        events.c.job == jobs.c.id, events.c.kind == kind, events.c.at >= jobs.c.ended_at
    )
    # Conditions on the columns of an index: a master reads this every few seconds, and most jobs are old.
    recent = (jobs.c.deleted_at.is_(None), jobs.c.ended_at >= since)
    query = select(jobs.c.id).where(*recent, jobs.c.state.in_(ENDED), ~exported.exists())
    age = (jobs.c.ended_at, jobs.c.sequence)
    turn = func.row_number().over(partition_by=jobs.c.owner, order_by=age)
    rows = await connection.scalars(query.order_by(turn, *age).limit(limit + len(without)))
    return [job for job in rows if job not in without][:limit]
