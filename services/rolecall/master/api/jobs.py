"""The routes `/jobs`: list, show, change and control jobs."""

import json
from collections.abc import Callable, Iterable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master import lifecycle
from rolecall.master.api.auth import USERS, Caller, Running, controls_job, has_room, needs, sees_job
from rolecall.master.api.error_handlers import documented
from rolecall.master.api.parameters import CURSOR, JobId, LabelFilter, accepted_by, merge_patch
from rolecall.master.catalogue import check_name
from rolecall.master.documents import detailed, job_document, job_overview
from rolecall.master.field_errors import unknown
from rolecall.master.job_changes import changes, check_label_count
from rolecall.master.program import Master
from rolecall.master.store import attempts, events, jobs, labels, listing, workers
from rolecall.master.store.listing import ListPlace, Order, Selection
from rolecall.master.store.records import JobRecord, JobSummary
from rolecall.master.token_limits import check_priority, reserve_submission
from rolecall.master.transitions import apply_step
from rolecall.spec.access import Scope
from rolecall.spec.api import JobPage
from rolecall.spec.bounds import AwareMoment
from rolecall.spec.errors import InvalidJob, InvalidRequest
from rolecall.spec.job import JobDocument, JobUpdate
from rolecall.spec.labels import MAX_LABELS
from rolecall.spec.state import JobState, StopMode

router = APIRouter(tags=["jobs"])
_READS = [Depends(needs(*USERS))]
_SUBMITS = [Depends(needs(Scope.SUBMIT, Scope.ADMIN))]
_SEES = [*_READS, Depends(sees_job)]
_LABEL = "Only jobs with this label: `NAME=VALUE`, or `NAME` for any value. With several, jobs that have all of them."
_CONTROLS = [*_SUBMITS, Depends(controls_job)]
_ADDS = [*_CONTROLS, Depends(has_room)]


@router.get("/jobs", dependencies=_READS, summary="List jobs", response_model=JobPage)
async def list_jobs(  # noqa: PLR0917 - the framework passes by name
    master: Running,
    caller: Caller,
    state: Annotated[list[JobState], Query(default_factory=list, description="Only jobs in one of these states.")],
    label: Annotated[list[LabelFilter], Query(default_factory=list, max_length=MAX_LABELS, description=_LABEL)],
    workload: Annotated[str | None, Query(max_length=120, description="Only jobs of this workload.")] = None,
    name: Annotated[str | None, Query(max_length=120, description="Only jobs with this text in their name.")] = None,
    owner: Annotated[str | None, Query(max_length=80, description="Only jobs of the token with this name.")] = None,
    created_after: Annotated[AwareMoment | None, Query(description="Only jobs submitted after this time.")] = None,
    created_before: Annotated[AwareMoment | None, Query(description="Only jobs submitted before this time.")] = None,
    order: Annotated[
        Order, Query(description="`queue` is the order in which queued jobs are placed: by priority, oldest first.")
    ] = "newest",
    limit: Annotated[int, Query(ge=1, le=200, description="Maximum number of jobs.")] = 50,
    cursor: Annotated[str | None, accepted_by(ListPlace.parse), CURSOR] = None,
) -> JobPage | Response:
    """Return jobs that meet all conditions: of all owners, or the token's own if it can't see others.

    `GET /jobs/{job}` returns the parameters, attempts and result of a job.
    """
    printable = all(text is None or text.isprintable() for text in (workload, name, owner))
    if not printable or not (owner is None or caller.sees(owner)):
        return JobPage(jobs=[], next_cursor=None)  # PostgreSQL rejects text with NUL.
    seen_owner = None if caller.reads_all else caller.name
    selection = Selection(
        states=tuple(state),
        workload=workload,
        name=name,
        owner=seen_owner or owner,
        labels=tuple((one, value if given else None) for one, given, value in (text.partition("=") for text in label)),
        created_after=created_after,
        created_before=created_before,
    )
    async with master.database.read() as connection:
        place = None if cursor is None else ListPlace.parse(cursor)
        found, following = await listing.page(connection, selection, limit, place, order)
        # Jobs of a workload that is broken or no longer installed can still be listed.
        known = master.catalogue.workloads.keys() | master.catalogue.broken.keys()
        is_known = found or workload in known
        if workload and not (is_known or await listing.has_workload(connection, workload, seen_owner)):
            raise InvalidRequest([unknown("workload", "workload", workload, known)])
        labeled = await labels.of_jobs(connection, [job.id for job in found])
    shown, size = list[bytes](), 0
    for job in found:
        # The newest progress can be larger than the stored one, by whose size the page ends.
        overview = job_overview(job, labeled.get(job.id, {}), **_current(master, job)).model_dump_json().encode()
        size += len(overview)
        if shown and size > listing.PAGE_BYTES:
            following = ListPlace.of(found[len(shown) - 1])
            break
        shown.append(overview)
    next_cursor = json.dumps(following.cursor if following else None).encode()
    return Response(b'{"jobs":[%b],"next_cursor":%b}' % (b",".join(shown), next_cursor), media_type="application/json")


@router.get("/jobs/{job}", dependencies=_SEES, summary="Show a job")
async def show_job(job: JobId, master: Running) -> JobDocument:
    """Return the job with its progress, its attempts and their workers."""
    return await job_document_of(master, job)


@router.patch("/jobs/{job}", dependencies=_ADDS, summary="Change a job", openapi_extra=merge_patch("JobUpdate"))
async def change_job(job: JobId, request: JobUpdate, master: Running, caller: Caller) -> JobDocument:
    """Change the name, priority or labels of a job, in any state. The body is a JSON Merge Patch (RFC 7396)."""
    if errors := check_name(request.name or ""):
        raise InvalidJob(errors)
    async with master.database.write() as connection:
        record = await jobs.get(connection, job)
        before = await labels.of_jobs(connection, [job])
        change = changes(record, before.get(job, {}), request)
        if errors := check_label_count(before.get(job, {}), change):
            raise InvalidJob(errors)
        if "priority" in change.values:
            check_priority(caller.name, caller.limits, change.values["priority"])
        await jobs.change(connection, job, **change.values)
        await labels.remove(connection, job, change.removed_labels)
        await labels.put(connection, job, change.set_labels)
        for message in change.messages:
            await events.add(connection, job, master.clock.now(), "change", f"{message} by {caller.name}")
    return await _changed(master, job)


@router.post("/jobs/{job}/cancel", dependencies=_CONTROLS, summary="Cancel a job", responses=documented(409))
async def cancel_job(job: JobId, master: Running, caller: Caller) -> JobDocument:
    """Stop the job for good. Possible in every state except the final ones."""
    return await _control(master, job, lambda record, _: lifecycle.cancel(record, caller.name))


@router.post("/jobs/{job}/pause", dependencies=_CONTROLS, summary="Pause a job", responses=documented(409))
async def pause_job(job: JobId, master: Running, caller: Caller) -> JobDocument:
    """Stop the job after a checkpoint and free its slots. `resume` queues it again."""

    def step(record: JobRecord, stop: StopMode | None) -> lifecycle.JobStep | None:
        return None if record.state is JobState.PAUSED else lifecycle.pause(record, stop, caller.name)

    return await _control(master, job, step)


@router.post("/jobs/{job}/resume", dependencies=_ADDS, summary="Resume a paused job", responses=documented(409))
async def resume_job(job: JobId, master: Running, caller: Caller) -> JobDocument:
    """Queue the job again. It resumes from its newest checkpoint.

    If the job is still being paused, it is queued when its workers have stopped.
    """
    return await _control(master, job, lambda record, stop: lifecycle.resume(record, stop, caller.name))


@router.post("/jobs/{job}/retry", dependencies=_ADDS, summary="Retry an ended job", responses=documented(409))
async def retry_job(job: JobId, master: Running, caller: Caller) -> JobDocument:
    """Queue a failed or cancelled job again, with all its restarts. It resumes from its newest checkpoint."""

    async def renew(connection: AsyncConnection) -> None:
        record = await jobs.get(connection, job)
        lifecycle.check_retry(record)
        await reserve_submission(connection, record.owner, master.access.limits.get(record.owner))
        await jobs.renew(connection, record, master.clock.now(), f"retried by {caller.name}")

    await master.database.with_retry(renew)
    return await _changed(master, job)


_StepOf = Callable[[JobRecord, StopMode | None], lifecycle.JobStep | None]
"""A user's step for a job, whose gang may be stopping in a mode; None if there is nothing to do."""


async def _control(master: Master, job: str, step_of: _StepOf) -> JobDocument:
    """Apply a user's step. If the master takes another one first, the user's step is that for the job's new state."""

    async def apply(connection: AsyncConnection) -> set[str]:
        record = await jobs.get(connection, job)
        stop = (await attempts.gang(connection, record)).attempt.stop if record.state.holds_slots else None
        step = step_of(record, stop)
        return await apply_step(connection, record, step, master.clock.now()) if step else set()

    return await _changed(master, job, await master.database.with_retry(apply))


async def _changed(master: Master, job: str, nodes: Iterable[str] = ()) -> JobDocument:
    master.waking.gang(job, nodes)
    return await job_document_of(master, job)


async def job_document_of(master: Master, job: str) -> JobDocument:
    """The job with its attempts and their workers. Raises `NotFound`."""
    async with master.database.read() as connection:
        record = await jobs.get(connection, job)
        summaries = await attempts.of_jobs(connection, [job])
        members = await workers.of_attempts(connection, detailed(record))
        labeled = await labels.of_jobs(connection, [job])
    return job_document(record, summaries, members, labeled.get(job, {}), **_current(master, record))


def _current(master: Master, job: JobSummary) -> dict[str, Any]:
    """The time, and the properties of a job that are newer in memory than in the database."""
    progress = master.progress.of_job(job.id, job.attempt)
    return {"progress": progress, "waiting_for": master.placer.waiting_for(job), "now": master.clock.now()}
