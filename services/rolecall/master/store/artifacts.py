"""Artifacts: files that a job leaves behind."""

from datetime import datetime

from sqlalchemy import delete, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.store.records import ArtifactRecord, read
from rolecall.master.store.schema import artifacts
from rolecall.spec.bounds import MAX_ARTIFACTS
from rolecall.spec.errors import NotFound, QuotaExceeded
from rolecall.spec.wire import ArtifactNotice


async def put(connection: AsyncConnection, job: str, attempt: int, notice: ArtifactNotice, now: datetime) -> None:
    """Store an artifact; replaces an earlier one with the same name. Raises `QuotaExceeded` if the job has too many."""
    await connection.execute(delete(artifacts).where(artifacts.c.job == job, artifacts.c.name == notice.name))
    count = await connection.scalar(select(func.count()).select_from(artifacts).where(artifacts.c.job == job)) or 0
    if count >= MAX_ARTIFACTS:
        raise QuotaExceeded(f"job {job} has {count} artifacts already, and that is the limit: put more into each")
    values = {"job": job, "attempt": attempt, "created_at": now} | notice.model_dump()
    await connection.execute(insert(artifacts).values(**values))


async def get(connection: AsyncConnection, job: str, name: str) -> ArtifactRecord:
    """The artifact. Raises `NotFound` with the names of the existing ones."""
    found = {artifact.name: artifact for artifact in await of_job(connection, job)}
    if name not in found:
        raise NotFound(f"job {job} has no artifact {name!r}; it has: {', '.join(found) or 'none yet'}")
    return found[name]


async def of_job(connection: AsyncConnection, job: str) -> list[ArtifactRecord]:
    """The artifacts of `job` by name."""
    query = select(artifacts).where(artifacts.c.job == job).order_by(artifacts.c.name)
    return [read(ArtifactRecord, row) for row in await connection.execute(query)]
