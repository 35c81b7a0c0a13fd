"""Limits for the jobs of one token, checked when a job is submitted and while one uploads."""

from collections.abc import AsyncIterator, Awaitable, Callable

from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.blobs import Blobs
from rolecall.master.field_errors import field_error
from rolecall.master.store import jobs, tokens
from rolecall.master.store.database import Database
from rolecall.spec.access import Limits
from rolecall.spec.bounds import MAX_PRIORITY
from rolecall.spec.errors import InvalidJob, LimitReached, StorageLimitReached

HARD_FACTOR = 2
"""Uploads of running attempts are refused only at this multiple of `max_stored_bytes`.

A checkpoint is complete before an older one is deleted, and refusing it costs the job its progress. So the limit itself
stops new jobs, and this higher limit stops a job that would fill the disk.
"""
STEP_BYTES = 32 << 20
"""The number of uploaded bytes after which the stored size is measured again."""


def check_priority(owner: str, limits: Limits, priority: int) -> None:
    """Raise `InvalidJob` for a priority that the token can't give to a job."""
    if limits.max_priority is not None and priority > limits.max_priority:
        message = f"token {owner} can give priorities up to {limits.max_priority} (max_priority)"
        raise InvalidJob([field_error("priority", message, priority, f"{-MAX_PRIORITY} to {limits.max_priority}")])


async def reserve_submission(connection: AsyncConnection, owner: str, limits: Limits | None) -> None:
    """Raise `LimitReached` if the token can't queue another job. The result holds until the transaction, which must be
    able to write, ends.
    """
    if limits is not None and not (limits.max_queued is None and limits.max_stored_bytes is None):
        await tokens.lock(connection, owner)
        await check_submission(connection, owner, limits)


async def check_submission(connection: AsyncConnection, owner: str, limits: Limits) -> None:
    """Raise `LimitReached` if the token can't queue another job at the moment."""
    if limits.max_queued is not None:
        waiting = await jobs.count_waiting(connection, owner)
        if waiting >= limits.max_queued:
            raise LimitReached(
                f"token {owner} has {waiting} queued or paused job{'s' * (waiting != 1)}, and its max_queued is "
                f"{limits.max_queued}; cancel some, or wait until some run"
            )
    if limits.max_stored_bytes is not None:
        stored = await jobs.stored_bytes(connection, owner)
        if stored >= limits.max_stored_bytes:
            raise LimitReached(
                f"the requests, checkpoints and artifacts of token {owner} take {stored} bytes, and its "
                f"max_stored_bytes is {limits.max_stored_bytes}; delete some of its jobs, or ask an admin for more"
            )


async def measure(database: Database, blobs: Blobs, owner: str) -> int:
    """The number of bytes that the jobs of `owner` currently store on the master's volume."""
    async with database.read() as connection:
        running = await jobs.holding_slots(connection, owner)
        stored = await jobs.stored_bytes(connection, owner, exclude=running)
    return stored + sum([await blobs.used(job) for job in running])


def check_stored(owner: str, limit: int, stored: int) -> None:
    """Raise `StorageLimitReached` if the owner's jobs store far more than `limit`."""
    if stored > HARD_FACTOR * limit:
        raise StorageLimitReached(
            f"the jobs of token {owner} store {stored} bytes, more than {HARD_FACTOR} times its max_stored_bytes of "
            f"{limit}; raise the limit or delete jobs, then retry this one"
        )


async def metered(
    chunks: AsyncIterator[bytes], owner: str, limit: int, stored_now: Callable[[], Awaitable[int]]
) -> AsyncIterator[bytes]:
    """The chunks of an upload. Raises `StorageLimitReached` when the owner's jobs store far more than `limit`."""
    since = STEP_BYTES
    async for chunk in chunks:
        if since >= STEP_BYTES:
            since = 0
            check_stored(owner, limit, await stored_now())
        since += len(chunk)
        yield chunk
