"""The route `POST /jobs`: check and queue a job, or only plan it."""

import hashlib
import secrets
from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Response
from pydantic import RootModel
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.access import Principal
from rolecall.master.api.auth import Caller, Running, has_room, needs
from rolecall.master.api.headers import with_headers
from rolecall.master.api.jobs import job_document_of
from rolecall.master.capacity import lacking, slots_needed
from rolecall.master.field_errors import MAX_FIELD_ERRORS, field_error, shortened, unknown
from rolecall.master.presence import Presence
from rolecall.master.program import Master
from rolecall.master.store import idempotency, jobs
from rolecall.master.store import nodes as node_store
from rolecall.master.store.records import JobRecord
from rolecall.master.token_limits import check_priority, check_submission, reserve_submission
from rolecall.master.webhooks import url_problem
from rolecall.spec.access import Scope
from rolecall.spec.errors import InvalidJob
from rolecall.spec.job import JobDocument, JobPlan, JobRequest, JobSpec
from rolecall.spec.node import NodeState
from rolecall.spec.plan import GangPlan
from rolecall.spec.resources import Resources, RoleRequest
from rolecall.spec.role import Role
from rolecall.spec.webhook import only_host

_KEY = "A text of your choice. A repeated request with the same one returns the job that the first one created."
router = APIRouter(tags=["jobs"], dependencies=[Depends(needs(Scope.SUBMIT, Scope.ADMIN)), Depends(has_room)])


@router.post(
    "/jobs",
    status_code=201,
    summary="Submit a job",
    response_model=JobDocument,
    responses={200: {"model": JobPlan, "description": "The plan of a dry run."}, 201: with_headers("Location")},
)
async def submit_job(  # noqa: PLR0917 - the framework passes by name
    request: JobRequest,
    response: Response,
    master: Running,
    caller: Caller,
    dry_run: Annotated[bool, Query(description="Check the request and plan the job without creating it.")] = False,
    key: Annotated[str | None, Header(alias="Idempotency-Key", max_length=255, description=_KEY)] = None,
) -> JobDocument | Response:
    """Check the request and queue the job. With an `Idempotency-Key`, a repeated request returns the same job.

    With `dry_run`, create nothing. The response is 200 with the workers on their nodes, or with the condition that the
    job would wait for. Only nodes can check the job's files, environment and own code, when the job starts. If the
    token has reached a limit (its queued jobs or stored bytes), the response is 429 and names the limit.
    """
    fields = await master.request_checks.run(request)
    check_priority(caller.name, caller.limits, request.priority)
    _check_webhook(request.notify, master.settings.webhook_hosts)
    if master.catalogue.is_per_node(request.workload):
        named = master.catalogue.target_nodes(request.workload, fields["params"])
        _check_node_count(caller, await _target_nodes(master, named))
    spec = JobSpec(id=f"{request.workload}-{secrets.token_hex(4)}", **fields)
    if dry_run:
        return await _planned(master, spec, caller)
    job = await _add(master, spec, caller, key, _digest(request, spec))
    response.headers["Location"] = f"/jobs/{job.id}"
    master.waking.queued(job.id)
    return await job_document_of(master, job.id)


async def _planned(master: Master, spec: JobSpec, caller: Principal) -> Response:
    """The plan of a job that passes the same checks as a submission."""
    async with master.database.read() as connection:
        await _check_capacity(connection, master.presence, caller, spec.roles, spec.resources)
        await check_submission(connection, caller.name, caller.limits)
    outcome = await master.placer.preview(spec, caller.name)
    waits, workers = (None, outcome.workers) if isinstance(outcome, GangPlan) else (outcome.reason, ())
    own: dict[str, Any] = {"waiting_for": waits, "workers": workers}
    plan = JobPlan(**{name: getattr(spec, name) for name in JobPlan.model_fields if name not in own} | own)
    return Response(plan.model_dump_json(), HTTPStatus.OK, media_type="application/json")


def _check_webhook(url: str | None, hosts: tuple[str, ...]) -> None:
    """Raise `InvalidJob` for the URL of a webhook that the operator does not allow."""
    if url is not None and (why := url_problem(url, hosts)):
        valid = f"an http or https URL of: {', '.join(hosts)}" if hosts else "none; omit it"
        raise InvalidJob([field_error("notify", why, only_host(url), valid)])


async def _target_nodes(master: Master, asked: Sequence[str]) -> list[str]:
    """The nodes on which a per-node job runs. Raises `InvalidJob` for unknown names."""
    async with master.database.read() as connection:
        known = {node.name: node for node in await node_store.list_all(connection)}
    unknown_nodes = [(place, name) for place, name in enumerate(asked) if name not in known]
    errors = [unknown(f"params.nodes.{place}", "node", name, known) for place, name in unknown_nodes[:MAX_FIELD_ERRORS]]
    if errors:
        raise InvalidJob(shortened(errors, len(unknown_nodes)))
    open_nodes = [node.spec.name for node in master.presence.states(known.values()) if node.alive and not node.draining]
    return sorted(set(asked)) or open_nodes


def _check_node_count(caller: Principal, nodes: list[str]) -> None:
    """Raise `InvalidJob` if the token's limit never allows a job on all of `nodes`."""
    limit = caller.limits.max_slots
    if limit is not None and len(nodes) > limit:
        message = f"the job needs a worker on each of {len(nodes)} nodes, and {_may_run(caller, limit)}"
        raise InvalidJob([field_error("params.nodes", message, nodes, f"{limit} nodes at most")])


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
    if errors := lacking(resources, nodes):
        raise InvalidJob(errors)
    asked, limit = slots_needed(roles, resources, nodes), caller.limits.max_slots
    if limit is not None and asked > limit:
        unit = "workers" if asked == sum(roles.values()) else "slots"
        message = f"the job needs {asked} {unit}, and {_may_run(caller, limit)}"
        given = {role.value: number for role, number in roles.items()}
        raise InvalidJob([field_error("roles", message, given, f"{limit} {unit} at most")])


def _may_run(caller: Principal, limit: int) -> str:
    return f"token {caller.name} may run {limit} at once (max_slots)"


def _digest(request: JobRequest, spec: JobSpec) -> str:
    """A digest of the request, to compare it with others that have the same key.

    It has the resources that the user requested, not those that the workload declares, which another release can
    change. A request without resources, labels and webhook has the same digest as in releases that don't know them.
    """
    asked = {role: own for role, own in request.roles.items() if isinstance(own, RoleRequest)}
    demands = RootModel(asked).model_dump_json() if asked else ""
    new = {name for name in ("labels", "notify") if not getattr(spec, name)}
    return hashlib.sha256((spec.model_dump_json(exclude={"id", "resources", *new}) + demands).encode()).hexdigest()


async def _add(master: Master, spec: JobSpec, owner: Principal, key: str | None, digest: str) -> JobRecord:
    async def found_or_added(connection: AsyncConnection) -> JobRecord:
        earlier = None if key is None else await idempotency.job_of(connection, owner.name, key, digest)
        if earlier is not None:
            return await jobs.get(connection, earlier)
        await _check_capacity(connection, master.presence, owner, spec.roles, spec.resources)
        await reserve_submission(connection, owner.name, owner.limits)
        now = master.clock.now()
        job = await jobs.add(connection, spec, now, owner.name)
        if key is not None:
            await idempotency.remember(connection, owner.name, key, digest, job.id, now)
        return job

    # Two requests with the same key can run at the same time. The repeated change finds the other's job.
    return await master.database.with_retry(found_or_added)
