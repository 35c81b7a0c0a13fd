"""The routes `/jobs`: submit, list, show and control jobs."""

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Iterable
from functools import partial
from itertools import groupby
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Response
from pydantic import RootModel
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master import lifecycle
from rolecall.master.access import Principal
from rolecall.master.api.auth import USERS, Caller, Running, controls_job, needs, sees_job
from rolecall.master.capacity import lacking, slots_needed
from rolecall.master.documents import detailed, job_document
from rolecall.master.field_errors import MAX_PROBLEMS, problem, shortened, unknown
from rolecall.master.presence import Presence
from rolecall.master.program import Master
from rolecall.master.store import attempts, idempotency, jobs, workers
from rolecall.master.store import nodes as node_store
from rolecall.master.store.records import JobRecord
from rolecall.master.token_limits import check_submission
from rolecall.master.transitions import apply_step
from rolecall.spec.access import Scope
from rolecall.spec.api import JobPage
from rolecall.spec.bounds import MAX_INTEGER
from rolecall.spec.errors import InvalidJob
from rolecall.spec.job import JobDocument, JobRequest, JobSpec
from rolecall.spec.node import NodeState
from rolecall.spec.resources import Resources, RoleRequest
from rolecall.spec.role import Role
from rolecall.spec.state import JobState

router = APIRouter(tags=["jobs"])
_READS = [Depends(needs(*USERS))]
_SUBMITS = [Depends(needs(Scope.SUBMIT, Scope.ADMIN))]
_SEES = [*_READS, Depends(sees_job)]
_CONTROLS = [*_SUBMITS, Depends(controls_job)]


@router.post("/jobs", status_code=201, dependencies=_SUBMITS, summary="Submit a job")
async def submit(
    request: JobRequest,
    response: Response,
    master: Running,
    caller: Caller,
    key: Annotated[str | None, Header(alias="Idempotency-Key", max_length=255)] = None,
) -> JobDocument:
    """Check the request and queue the job. With an `Idempotency-Key`, a repeated request returns the same job.

    If the token has reached a limit, the response is 429 and names the limit.
    """
    fields = await master.request_checks.run(request)
    if master.catalogue.is_per_node(request.workload):
        _check_node_count(caller, await _target_nodes(master, fields["params"]["nodes"]))
    spec = JobSpec(id=f"{request.workload}-{secrets.token_hex(4)}", **fields)
    job = await _add(master, spec, caller, key, _digest(request, spec))
    response.headers["Location"] = f"/jobs/{job.id}"
    if job.attempt or job.state is not JobState.QUEUED:
        return await _document(master, job.id)  # An earlier request with the same key submitted it.
    master.waking.queued(job.id)
    return job_document(job, (), {}, progress=None, waiting_for=None)


@router.get("/jobs", dependencies=_READS, summary="List jobs", response_model=JobPage)
async def page(  # noqa: PLR0917 - the framework passes by name
    master: Running,
    caller: Caller,
    state: Annotated[JobState | None, Query(description="Only jobs in this state.")] = None,
    owner: Annotated[str | None, Query(max_length=80, description="Only jobs of the token with this name.")] = None,
    limit: Annotated[
        int, Query(ge=1, le=200, description="Maximum number of jobs; fewer if their documents are large.")
    ] = 50,
    cursor: Annotated[int | None, Query(ge=0, le=MAX_INTEGER, description="From the previous page.")] = None,
) -> Response:
    """Return jobs, newest first: all of them, or the token's own if it can't see others."""
    builders, following = list[Callable[[], JobDocument]](), None
    if owner is None or (owner.isprintable() and caller.sees(owner)):
        async with master.database.read() as connection:
            visible_owner = owner if caller.reads_all else caller.name
            found, more = await jobs.page(connection, state, limit, cursor, visible_owner)
            builders = await _document_builders(master, connection, found)
        following = str(found[-1].sequence) if more else None
    # In a thread, because serializing large parameters takes long.
    body = await asyncio.to_thread(
        lambda: JobPage(jobs=[build() for build in builders], next_cursor=following).model_dump_json()
    )
    return Response(body, media_type="application/json")


@router.get("/jobs/{job}", dependencies=_SEES, summary="Show a job")
async def show(job: str, master: Running) -> JobDocument:
    """Return the job with its progress, its attempts and their workers."""
    return await _document(master, job)


@router.post("/jobs/{job}/cancel", dependencies=_CONTROLS, summary="Cancel a job")
async def cancel(job: str, master: Running, caller: Caller) -> JobDocument:
    """Stop the job for good. Possible in every state except the final ones."""
    async with master.database.write() as connection:
        record = await jobs.get(connection, job)
        nodes = await apply_step(connection, record, lifecycle.cancel(record, caller.name), master.clock.now())
    return await _changed(master, job, nodes)


@router.post("/jobs/{job}/pause", dependencies=_CONTROLS, summary="Pause a job")
async def pause(job: str, master: Running, caller: Caller) -> JobDocument:
    """Stop the job after a checkpoint and free its slots. `resume` queues it again."""
    async with master.database.write() as connection:
        record, nodes = await jobs.get(connection, job), set[str]()
        if record.state is not JobState.PAUSED:
            stop = (await attempts.gang(connection, record)).attempt.stop if record.state.holds_slots else None
            nodes = await apply_step(connection, record, lifecycle.pause(record, stop, caller.name), master.clock.now())
    return await _changed(master, job, nodes)


@router.post("/jobs/{job}/resume", dependencies=_CONTROLS, summary="Resume a paused job")
async def resume(job: str, master: Running, caller: Caller) -> JobDocument:
    """Queue the job again. It resumes from its newest checkpoint."""
    async with master.database.write() as connection:
        record = await jobs.get(connection, job)
        lifecycle.check_resume(record)
        await jobs.requeue(connection, record, master.clock.now(), f"resumed by {caller.name}", 0.0)
    return await _changed(master, job)


@router.post("/jobs/{job}/retry", dependencies=_CONTROLS, summary="Retry an ended job")
async def retry(job: str, master: Running, caller: Caller) -> JobDocument:
    """Queue a failed or cancelled job again, with all its restarts. It resumes from its newest checkpoint."""
    async with master.database.write() as connection:
        record = await jobs.get(connection, job)
        lifecycle.check_retry(record)
        await check_submission(connection, record.owner, master.access.limits.get(record.owner))
        await jobs.renew(connection, record, master.clock.now(), f"retried by {caller.name}")
    return await _changed(master, job)


async def _target_nodes(master: Master, asked: list[str]) -> list[str]:
    """The nodes on which a per-node job runs. Raises `InvalidJob` for unknown names."""
    async with master.database.read() as connection:
        known = {node.name: node for node in await node_store.list_all(connection)}
    unknown_nodes = [(place, name) for place, name in enumerate(asked) if name not in known]
    problems = [unknown(f"params.nodes.{place}", "node", name, known) for place, name in unknown_nodes[:MAX_PROBLEMS]]
    if problems:
        raise InvalidJob(shortened(problems, len(unknown_nodes)))
    open_nodes = [node.spec.name for node in master.presence.states(known.values()) if node.alive and not node.draining]
    return sorted(set(asked)) or open_nodes


def _check_node_count(caller: Principal, nodes: list[str]) -> None:
    """Raise `InvalidJob` if the token's limit never allows a job on all of `nodes`."""
    limit = caller.limits.max_slots
    if limit is not None and len(nodes) > limit:
        message = f"the job needs a worker on each of {len(nodes)} nodes, and {_may_run(caller, limit)}"
        raise InvalidJob([problem("params.nodes", message, nodes, f"{limit} nodes at most")])


async def _check_capacity(
    connection: AsyncConnection,
    presence: Presence,
    caller: Principal,
    roles: dict[Role, int],
    resources: dict[Role, Resources],
) -> None:
    """Raise `InvalidJob` for resources that no live node of the role has, and for a gang that the token's limit never
    allows. Jobs wait for roles without live nodes.
    """
    nodes: list[NodeState] = []
    if any(own.gpus or own.threads for own in resources.values()):
        nodes = list(presence.states(await node_store.list_all(connection)))
    if problems := lacking(resources, nodes):
        raise InvalidJob(problems)
    asked, limit = slots_needed(roles, resources, nodes), caller.limits.max_slots
    if limit is not None and asked > limit:
        unit = "workers" if asked == sum(roles.values()) else "slots"
        message = f"the job needs {asked} {unit}, and {_may_run(caller, limit)}"
        given = {role.value: number for role, number in roles.items()}
        raise InvalidJob([problem("roles", message, given, f"{limit} {unit} at most")])


def _may_run(caller: Principal, limit: int) -> str:
    return f"token {caller.name} may run {limit} at once (max_slots)"


def _digest(request: JobRequest, spec: JobSpec) -> str:
    """A digest of the request, to compare it with others that have the same key.

    It has the resources that the user requested, not those that the workload declares, which another release can
    change. A request without any has the same digest as in releases that don't know resources.
    """
    asked = {role: own for role, own in request.roles.items() if isinstance(own, RoleRequest)}
    demands = RootModel(asked).model_dump_json() if asked else ""
    return hashlib.sha256((spec.model_dump_json(exclude={"id", "resources"}) + demands).encode()).hexdigest()


async def _add(master: Master, spec: JobSpec, owner: Principal, key: str | None, digest: str) -> JobRecord:
    try:
        async with master.database.write() as connection:
            return await _add_once(connection, master, spec, owner, key, digest)
    except IntegrityError:
        # On PostgreSQL, two requests with the same key can run at the same time. The retry finds the other's job.
        async with master.database.write() as connection:
            return await _add_once(connection, master, spec, owner, key, digest)


async def _add_once(  # noqa: PLR0917 - the parameters of `_add`
    connection: AsyncConnection, master: Master, spec: JobSpec, owner: Principal, key: str | None, digest: str
) -> JobRecord:
    earlier = None if key is None else await idempotency.job_of(connection, owner.name, key, digest)
    if earlier is not None:
        return await jobs.get(connection, earlier)
    await _check_capacity(connection, master.presence, owner, spec.roles, spec.resources)
    await check_submission(connection, owner.name, owner.limits)
    now = master.clock.now()
    job = await jobs.add(connection, spec, now, owner.name)
    if key is not None:
        await idempotency.remember(connection, owner.name, key, digest, job.id, now)
    return job


async def _changed(master: Master, job: str, nodes: Iterable[str] = ()) -> JobDocument:
    master.waking.gang(job, nodes)
    return await _document(master, job)


async def _document(master: Master, job: str) -> JobDocument:
    async with master.database.read() as connection:
        (build,) = await _document_builders(master, connection, [await jobs.get(connection, job)])
    return build()


async def _document_builders(
    master: Master, connection: AsyncConnection, shown: list[JobRecord]
) -> list[Callable[[], JobDocument]]:
    """Functions that create the documents of jobs, whose data is already read."""
    summaries = await attempts.of_jobs(connection, [job.id for job in shown])
    members = await workers.of_attempts(connection, [key for job in shown for key in detailed(job)])
    grouped = {job: list(some) for job, some in groupby(summaries, key=lambda one: one.job)}
    return [
        partial(
            job_document,
            job,
            grouped.get(job.id, ()),
            members,
            progress=master.progress.of_job(job.id, job.attempt),
            waiting_for=master.placer.waiting_for(job),
        )
        for job in shown
    ]
