from collections.abc import Collection, Iterable, Mapping
from itertools import groupby

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.store.schema import labels


async def put(connection: AsyncConnection, job: str, given: Mapping[str, str]) -> None:
    """Set labels of `job`; the others stay."""
    await remove(connection, job, given)
    if rows := [{"job": job, "name": name, "value": value} for name, value in given.items()]:
        await connection.execute(insert(labels), rows)


async def remove(connection: AsyncConnection, job: str, names: Iterable[str]) -> None:
    """Remove these labels of `job`, if it has them."""
    if given := tuple(names):  # Most jobs have no labels.
        await connection.execute(delete(labels).where(labels.c.job == job, labels.c.name.in_(given)))


async def of_jobs(connection: AsyncConnection, ids: Collection[str]) -> dict[str, dict[str, str]]:
    """The labels of each of `ids` that has some, sorted by name."""
    query = select(labels).where(labels.c.job.in_(tuple(ids))).order_by(labels.c.job, labels.c.name)
    rows = await connection.execute(query)
    return {job: {row.name: row.value for row in some} for job, some in groupby(rows, key=lambda row: row.job)}
