"""The routes that delete jobs: `DELETE /jobs/{id}` and `POST /jobs/prune`."""

import asyncio
from collections import Counter
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master import lifecycle
from rolecall.master.api.auth import Caller, Running, controls_job, needs
from rolecall.master.api.error_handlers import documented
from rolecall.master.api.parameters import JobId
from rolecall.master.store import deletion, jobs
from rolecall.master.store.schema import ENDED
from rolecall.master.transitions import apply_step
from rolecall.spec.access import Scope
from rolecall.spec.api import PrunedJob, PruneRequest, PruneSummary
from rolecall.spec.errors import Conflict

router = APIRouter(prefix="/jobs", tags=["jobs"], dependencies=[Depends(needs(Scope.SUBMIT, Scope.ADMIN))])
_BATCH = 200
"""The number of jobs per transaction, so that other writers never wait long."""


@router.post("/prune", summary="Delete old jobs")
async def prune_jobs(request: PruneRequest, master: Running, caller: Caller) -> PruneSummary:
    """Delete all jobs that ended before a given time, and return them. With `dry_run`, only return them.

    Without the scope `admin`, this applies only to the jobs that the token owns.
    """
    owner = None if Scope.ADMIN in caller.scopes else caller.name
    states = ENDED if request.state is None else (request.state,)
    async with master.database.read() as connection:
        found = await deletion.ended(connection, request.ended_before, states, owner)
    sizes: Counter[str] = Counter()
    for start in range(0, len(found), _BATCH):
        ids = [job for job, *_ in found[start : start + _BATCH]]
        async with master.database.read() as connection:
            sizes += await deletion.recorded_sizes(connection, ids)
        for job in ids:
            sizes[job] += await asyncio.to_thread(master.streams.used, job)
        if not request.dry_run:
            async with master.database.write() as connection:
                await deletion.mark_ended(connection, ids, request.ended_before, master.clock.now())
    master.garbage.notify()
    pruned = [PrunedJob(id=job, name=name, state=state, ended_at=at, size=sizes[job]) for job, name, state, at in found]
    return PruneSummary(jobs=pruned, size=sizes.total())


@router.delete(
    "/{job}", status_code=204, dependencies=[Depends(controls_job)], summary="Delete a job", responses=documented(409)
)
async def delete_job(
    job: JobId,
    master: Running,
    caller: Caller,
    force: Annotated[bool, Query(description="Cancel the job first if it has not ended.")] = False,
) -> None:
    """Delete an ended job with its logs, checkpoints and artifacts. With `force`, cancel it first if necessary.

    The job is hidden as soon as it has ended, and its files are deleted soon after. Deleting it again changes nothing.
    """

    async def mark(connection: AsyncConnection) -> set[str] | None:
        """The nodes of a job that this cancels; None if the job was marked before."""
        if await deletion.is_marked(connection, job):
            return None
        record, nodes = await jobs.get(connection, job), set[str]()
        if not record.state.ended:
            if not force:
                raise Conflict(
                    f"job {job} is {record.state} and can't be deleted; cancel it first, or add --force "
                    "(?force=true), which cancels it and deletes it when it has ended"
                )
            nodes = await apply_step(connection, record, lifecycle.cancel(record, caller.name), master.clock.now())
        await deletion.mark(connection, job, master.clock.now())
        return nodes

    if (nodes := await master.database.with_retry(mark)) is None:
        return
    master.garbage.notify()
    master.waking.gang(job, nodes)
