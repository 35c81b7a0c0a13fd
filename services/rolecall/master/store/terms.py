"""Terms of leadership, numbered in ascending order.

A transaction that writes first checks the number, and locks it until its end. So a master that was stopped or
disconnected while another one took the lead can't commit anything.
"""

from datetime import datetime

from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.storage_errors import LeadershipLost
from rolecall.master.store.schema import leadership

_ROW = 1


async def begin(connection: AsyncConnection, leader: str, now: datetime) -> int:
    """Begin a new term, after the writing transactions of the previous one have ended. Returns its number."""
    values = {"leader": leader, "began_at": now}
    following = update(leadership).where(leadership.c.id == _ROW).values(term=leadership.c.term + 1, **values)
    term = (await connection.execute(following.returning(leadership.c.term))).scalar_one_or_none()
    if term is not None:
        return term
    await connection.execute(insert(leadership).values(id=_ROW, term=1, **values))
    return 1


async def check(connection: AsyncConnection, term: int) -> None:
    """Raise `LeadershipLost` unless this is the current term, and lock it until the transaction ends."""
    row = (await connection.execute(select(leadership).with_for_update(read=True))).one_or_none()
    if row is None or row.term != term:
        leader = f"{row.leader} has taken over" if row else "the table of terms is empty"
        raise LeadershipLost(f"this master no longer leads: {leader}; ask the one that leads")


async def current(connection: AsyncConnection) -> int | None:
    """The current term; None before the first."""
    return (await connection.execute(select(leadership.c.term))).scalar_one_or_none()
