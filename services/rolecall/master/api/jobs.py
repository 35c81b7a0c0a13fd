"""`/jobs`: submit, list, show, steer."""

import hashlib
import secrets
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Response
from pydantic import Field
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master import lifecycle
from rolecall.master.api.auth import Running, require_user
from rolecall.master.api.limits import MOST
from rolecall.master.core import Master
from rolecall.master.documents import job_document
from rolecall.master.lifecycle import Step
from rolecall.master.problems import unknown
from rolecall.master.reconciler import redirect_stop, take_step
from rolecall.master.store import attempts, idempotency, jobs, nodes, workers
from rolecall.master.store.records import JobRecord
from rolecall.spec.errors import InvalidJob
from rolecall.spec.job import JobDocument, JobRequest, JobSpec
from rolecall.spec.model import Value
from rolecall.spec.state import JobState

router = APIRouter(tags=["jobs"], dependencies=[Depends(require_user)])


class JobPage(Value):
    """A page of `GET /jobs`, newest first."""

    jobs: list[JobDocument]
    next_cursor: str | None = Field(description="Pass it as `cursor` for the next page; null on the last one.")


@router.post("/jobs", status_code=201, summary="Submit a job")
async def submit(
    request: JobRequest,
    response: Response,
    master: Running,
    key: Annotated[str | None, Header(alias="Idempotency-Key", max_length=255)] = None,
) -> JobDocument:
    """Check the request and queue it. With an `Idempotency-Key`, sending it again returns the same job."""
    fields = master.catalogue.check_request(request)
    if master.catalogue.is_everywhere(request.workload):
        await _check_nodes(master, fields["params"]["nodes"])
    spec = JobSpec(id=f"{request.workload}-{secrets.token_hex(4)}", **fields)
    job = await _add(master, spec, key)
    master.changed_by_hand()
    response.headers["Location"] = f"/jobs/{job.id}"
    return await _document(master, job.id)


@router.get("/jobs", summary="List jobs")
async def page(
    master: Running,
    state: Annotated[JobState | None, Query(description="Only jobs in this state.")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[int | None, Query(ge=0, le=MOST, description="From the page before.")] = None,
) -> JobPage:
    """Jobs, newest first."""
    async with master.database.read() as connection:
        found = await jobs.page(connection, state, limit + 1, cursor)
        shown = found[:limit]
        documents = await _documents(master, connection, shown)
    return JobPage(jobs=documents, next_cursor=str(shown[-1].sequence) if len(found) > limit else None)


@router.get("/jobs/{job}", summary="Show a job")
async def show(job: str, master: Running) -> JobDocument:
    """The job with its progress, its attempts and their workers."""
    return await _document(master, job)


@router.post("/jobs/{job}/cancel", summary="Cancel a job")
async def cancel(job: str, master: Running) -> JobDocument:
    """Stop it, and don't start it again. Possible in every state but the final ones."""
    async with master.database.write() as connection:
        record = await jobs.get(connection, job)
        await apply_step(connection, record, lifecycle.cancel(record))
    return await _changed(master, job)


@router.post("/jobs/{job}/pause", summary="Pause a job")
async def pause(job: str, master: Running) -> JobDocument:
    """Let it write a checkpoint and leave its slots; `resume` queues it again."""
    async with master.database.write() as connection:
        record = await jobs.get(connection, job)
        if record.state is not JobState.PAUSED:
            stop = (await attempts.gang(connection, record)).attempt.stop if record.state.holds_slots else None
            await apply_step(connection, record, lifecycle.pause(record, stop))
    return await _changed(master, job)


@router.post("/jobs/{job}/resume", summary="Resume a paused job")
async def resume(job: str, master: Running) -> JobDocument:
    """Queue it again; it starts from its newest checkpoint."""
    async with master.database.write() as connection:
        record = await jobs.get(connection, job)
        lifecycle.check_resume(record)
        await jobs.requeue(connection, record, _now(), "resumed by its user", 0.0)
    return await _changed(master, job)


@router.post("/jobs/{job}/retry", summary="Retry an ended job")
async def retry(job: str, master: Running) -> JobDocument:
    """Queue a failed or cancelled job again, with all its restarts; it starts from its newest checkpoint."""
    async with master.database.write() as connection:
        record = await jobs.get(connection, job)
        lifecycle.check_retry(record)
        await jobs.renew(connection, record, _now())
    return await _changed(master, job)


async def apply_step(connection: AsyncConnection, job: JobRecord, step: Step) -> None:
    """Take a step that a user asked for, from whatever state the job is in."""
    if not job.state.holds_slots:
        await jobs.move(connection, job, step.after, _now(), step.reason or "", reason=step.reason)
        return
    gang = await attempts.gang(connection, job)
    if job.state is JobState.STOPPING:
        await redirect_stop(connection, gang, step)
    else:
        await take_step(connection, gang, step, _now())


async def _check_nodes(master: Master, asked: list[str]) -> None:
    """Raise `InvalidJob` for names that no node has."""
    async with master.database.read() as connection:
        known = {node.name for node in await nodes.everything(connection)}
    problems = [unknown(f"params.nodes.{i}", "node", name, known) for i, name in enumerate(asked) if name not in known]
    if problems:
        raise InvalidJob(problems)


async def _add(master: Master, spec: JobSpec, key: str | None) -> JobRecord:
    try:
        async with master.database.write() as connection:
            return await _add_once(connection, spec, key)
    except IntegrityError:
        # On PostgreSQL the same key may come in twice at once; the second time finds what the first has made.
        async with master.database.write() as connection:
            return await _add_once(connection, spec, key)


async def _add_once(connection: AsyncConnection, spec: JobSpec, key: str | None) -> JobRecord:
    if key is None:
        return await jobs.add(connection, spec, _now())
    digest = hashlib.sha256(spec.model_dump_json(exclude={"id"}).encode()).hexdigest()
    earlier = await idempotency.job_of(connection, key, digest)
    if earlier is not None:
        return await jobs.get(connection, earlier)
    job = await jobs.add(connection, spec, _now())
    await idempotency.remember(connection, key, digest, job.id, _now())
    return job


async def _changed(master: Master, job: str) -> JobDocument:
    master.changed_by_hand()
    return await _document(master, job)


async def _document(master: Master, job: str) -> JobDocument:
    async with master.database.read() as connection:
        return (await _documents(master, connection, [await jobs.get(connection, job)]))[0]


async def _documents(master: Master, connection: AsyncConnection, shown: list[JobRecord]) -> list[JobDocument]:
    tries = await attempts.of_jobs(connection, [job.id for job in shown])
    members = await workers.of_attempts(connection, [(one.job, one.number) for one in tries])
    return [job_document(job, tries, members, master.progress.of_job(job.id, job.attempt)) for job in shown]


def _now() -> datetime:
    return datetime.now(UTC)
