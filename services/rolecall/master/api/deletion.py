"""Deleting jobs: one by `DELETE /jobs/{id}`, many by `POST /jobs/prune`."""

import asyncio
from datetime import UTC, datetime

from fastapi import APIRouter, Depends
from pydantic import AwareDatetime
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master import lifecycle
from rolecall.master.api.auth import Running, require_user
from rolecall.master.api.jobs import apply_step
from rolecall.master.store import artifacts, checkpoints, deletion, jobs
from rolecall.spec.errors import Conflict
from rolecall.spec.model import Request, Value
from rolecall.spec.state import JobState

router = APIRouter(prefix="/jobs", tags=["jobs"], dependencies=[Depends(require_user)])


class PruneRequest(Request):
    """Which ended jobs are deleted."""

    ended_before: AwareDatetime
    state: JobState | None = None
    """Only jobs that ended in this state; all ended ones by default."""
    dry_run: bool = False
    """Whether to list them only."""


class PrunedJob(Value):
    """A job that is deleted, or would be."""

    id: str
    name: str
    state: JobState
    ended_at: datetime
    size: int
    """Bytes of its logs, progress, recorded checkpoints and artifacts."""


class PruneSummary(Value):
    """What `POST /jobs/prune` deletes."""

    jobs: list[PrunedJob]
    size: int
    """Bytes of all of them."""


@router.post("/prune", summary="Delete old jobs")
async def prune(request: PruneRequest, master: Running) -> PruneSummary:
    """Delete all jobs that ended before a moment, and say which. With `dry_run`, only say which."""
    async with master.database.write() as connection:
        states = deletion.ENDED if request.state is None else [request.state]
        found = [one for one in await deletion.ended(connection, request.ended_before, states) if one[2].ended]
        recorded = {job: await _recorded(connection, job) for job, *_ in found}
        if not request.dry_run:
            await deletion.mark(connection, list(recorded), _now())
    streams = await asyncio.to_thread(lambda: {job: master.streams.used(job) for job in recorded})
    master.garbage.notify()
    pruned = [
        PrunedJob(id=job, name=name, state=state, ended_at=at, size=recorded[job] + streams[job])
        for job, name, state, at in found
    ]
    return PruneSummary(jobs=pruned, size=sum(one.size for one in pruned))


@router.delete("/{job}", status_code=204, summary="Delete a job")
async def delete(job: str, master: Running, force: bool = False) -> None:
    """Delete an ended job with its logs, checkpoints and artifacts. With `force`, cancel it first if need be.

    It is hidden at once, and its files are gone soon after. Deleting it again changes nothing.
    """
    async with master.database.write() as connection:
        if await deletion.is_marked(connection, job):
            return
        record = await jobs.get(connection, job)
        if not record.state.ended:
            if not force:
                raise Conflict(
                    f"job {job} is {record.state} and can't be deleted; cancel it first, or add ?force=true "
                    "(rolecall delete --force), which cancels it and deletes it when it has ended"
                )
            await apply_step(connection, record, lifecycle.cancel(record))
        await deletion.mark(connection, [job], _now())
    master.garbage.notify()
    master.changed_by_hand()


async def _recorded(connection: AsyncConnection, job: str) -> int:
    known = await checkpoints.of_job(connection, job)
    sizes = {part.blob: part.size for one in known for part in one.manifest.parts}
    sizes |= {one.blob: one.size for one in await artifacts.of_job(connection, job)}
    return sum(sizes.values())


def _now() -> datetime:
    return datetime.now(UTC)
