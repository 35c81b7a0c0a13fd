"""The audit log: calls, their callers and outcomes."""

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.store.schema import audit
from rolecall.spec.access import AuditEntry


async def add(connection: AsyncConnection, entries: Iterable[AuditEntry]) -> None:
    """Append entries; the database gives them their ids."""
    if rows := [entry.model_dump(exclude={"id"}) for entry in entries]:
        await connection.execute(insert(audit), rows)


async def newest(connection: AsyncConnection, limit: int) -> list[AuditEntry]:
    """The newest `limit` entries, oldest first."""
    found = await connection.execute(select(audit).order_by(audit.c.id.desc()).limit(limit))
    return [AuditEntry.model_validate(row._asdict()) for row in found][::-1]  # pyright: ignore[reportPrivateUsage]


async def since(connection: AsyncConnection, after: int, limit: int) -> list[AuditEntry]:
    """Up to `limit` entries with ids above `after`, oldest first."""
    query = select(audit).where(audit.c.id > after).order_by(audit.c.id).limit(limit)
    found = await connection.execute(query)
    return [AuditEntry.model_validate(row._asdict()) for row in found]  # pyright: ignore[reportPrivateUsage]


async def prune(connection: AsyncConnection, before: datetime) -> int:
    """Delete the entries from before `before`. Returns their number."""
    # Ids grow with time, so the query stops at the first entry to keep.
    kept = select(audit.c.id).where(audit.c.at >= before).order_by(audit.c.id).limit(1)
    first = await connection.scalar(kept)
    old = audit.c.at < before if first is None else audit.c.id < first
    return (await connection.execute(delete(audit).where(old))).rowcount
