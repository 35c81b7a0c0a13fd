"""Idempotency keys, with which a repeated `POST /jobs` finds its job (draft-ietf-httpapi-idempotency-key-header)."""

from datetime import datetime

from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.store.schema import idempotency
from rolecall.spec.errors import InvalidJob


async def job_of(connection: AsyncConnection, owner: str, key: str, digest: str) -> str | None:
    """The job of an earlier request of `owner` with `key`. Raises `InvalidJob` if that request was different."""
    of_owner = (idempotency.c.owner == owner, idempotency.c.key == key)
    query = select(idempotency.c.digest, idempotency.c.job).where(*of_owner)
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        return None
    if row.digest != digest:
        message = f"this key was used for another request, which made job {row.job}"
        legal = "a new key for a new request"
        raise InvalidJob([{"field": "Idempotency-Key", "message": message, "given": key, "legal": legal}])
    return row.job


async def remember(  # noqa: PLR0917 - the columns of the table
    connection: AsyncConnection, owner: str, key: str, digest: str, job: str, now: datetime
) -> None:
    """Store that the request with the owner's `key` created `job`."""
    values = {"owner": owner, "key": key, "digest": digest, "job": job, "created_at": now}
    await connection.execute(insert(idempotency).values(values))
