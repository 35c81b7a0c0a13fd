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


async def page(
    connection: AsyncConnection, limit: int, before: int | None = None, since: datetime | None = None
) -> tuple[list[AuditEntry], int | None]:
    """The newest `limit` entries, newest first, and the id of the last one if there are older ones.

    With `before`, only entries with smaller ids; with `since`, only entries from this time on.
    """
    query = select(audit).order_by(audit.c.id.desc()).limit(limit + 1)
    query = query if before is None else query.where(audit.c.id < before)
    query = query if since is None else query.where(audit.c.at >= since)
    rows = await connection.execute(query)
    found = [AuditEntry.model_validate(row._asdict()) for row in rows]  # pyright: ignore[reportPrivateUsage]
    return found[:limit], found[limit - 1].id if len(found) > limit else None


async def prune(connection: AsyncConnection, before: datetime) -> int:
    """Delete the entries from before `before`. Returns their number."""
    # Ids grow with time, so the query stops at the first entry to keep.
    kept = select(audit.c.id).where(audit.c.at >= before).order_by(audit.c.id).limit(1)
    first = await connection.scalar(kept)
    old = audit.c.at < before if first is None else audit.c.id < first
    return (await connection.execute(delete(audit).where(old))).rowcount
