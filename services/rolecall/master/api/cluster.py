"""The routes about the cluster: workloads, nodes, health and Prometheus metrics."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Path, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy.exc import SQLAlchemyError

from rolecall.daemon_thread import run_in_daemon_thread
from rolecall.master.access import Principal
from rolecall.master.api.auth import USERS, Caller, Running, address_of, needs
from rolecall.master.catalogue import Catalogue, schema_of
from rolecall.master.metrics import exposition
from rolecall.master.storage_errors import describe
from rolecall.master.store import nodes
from rolecall.master.store.records import Gang
from rolecall.master.waking import TICK_S
from rolecall.master.weak_settings import weaknesses
from rolecall.settings.private_paths import readable_secret_files
from rolecall.spec.access import Scope
from rolecall.spec.api import (
    FindingList,
    Health,
    MetricDocument,
    NodeList,
    Readiness,
    RoleDocument,
    WorkloadDocument,
    WorkloadList,
)
from rolecall.spec.node import NodeDocument, Occupant

_METRICS = {"content": {"text/plain": {"schema": {"type": "string"}}}}
_PATIENCE_S = 3 * TICK_S + 8.5
"""The maximum time since the last pass of a loop: some ticks, and time for a busy database."""
router = APIRouter(tags=["cluster"], dependencies=[Depends(needs(*USERS))])
metrics_router = APIRouter(tags=["cluster"], dependencies=[Depends(needs(Scope.METRICS, Scope.READ, Scope.ADMIN))])
admin_router = APIRouter(tags=["cluster"], dependencies=[Depends(needs(Scope.ADMIN))])
open_router = APIRouter(tags=["cluster"])


@router.get("/workloads", summary="List workloads")
async def list_workloads(master: Running) -> WorkloadList:
    """Return the workloads with their roles and parameters."""
    known = master.catalogue.workloads
    return WorkloadList(
        workloads=[_workload(master.catalogue, name) for name in sorted(known)], broken=dict(master.catalogue.broken)
    )


@router.get("/workloads/{name}", summary="Show a workload")
async def show_workload(
    name: Annotated[str, Path(description="The workload's name.")], master: Running
) -> WorkloadDocument:
    """Return the workload's roles and the JSON schema of its parameters."""
    return _workload(master.catalogue, master.catalogue.get(name).name)


@router.get("/nodes", summary="List nodes")
async def list_nodes(master: Running, caller: Caller) -> NodeList:
    """Return the registered nodes, their state and their workers."""
    async with master.database.read() as connection:
        known = await nodes.list_all(connection)
    occupants = _occupants(master.view.gangs.values(), caller)
    return NodeList(
        nodes=[
            NodeDocument.model_validate(state, from_attributes=True).model_copy(
                update={"workers": tuple(occupants[state.spec.name])}
            )
            for state in master.presence.states(known)
        ]
    )


@router.get("/readyz", summary="Check whether the master can work")
async def check_readiness(master: Running) -> Readiness:
    """Return 200 if the database answers and the master's loops make progress, otherwise 503 with the reason."""
    try:
        await master.database.ping()
    except SQLAlchemyError as error:
        raise HTTPException(503, describe(error)) from None
    for pulse in (master.reconciler.pulse, master.placer.pulse):
        if failure := pulse.failure(_PATIENCE_S):
            raise HTTPException(503, failure)
    return Readiness(status="ready", volume=await master.reserve.volume())


@admin_router.get("/findings", summary="List weak settings of the master")
async def list_findings(master: Running) -> FindingList:
    """Return weak settings and their remedies, which `rolecall doctor` shows with its own findings."""
    # The files can be on a volume that hangs.
    readable = await run_in_daemon_thread(readable_secret_files, *master.settings.database_files)
    return FindingList(findings=list(weaknesses(master.settings, readable, master.access.scrapes)))


@metrics_router.get("/metrics", summary="Prometheus metrics", response_class=Response, responses={200: _METRICS})
async def read_metrics(request: Request, caller: Caller, master: Running) -> Response:
    """Return the state of the cluster and of its running jobs in the Prometheus text format."""
    master.access.note_scrape(caller, address_of(request.scope))
    return Response(await exposition(master), media_type=CONTENT_TYPE_LATEST)


@open_router.get("/healthz", summary="Check whether the program answers")
async def check_health() -> Health:
    """Return 200 to every client. The response contains nothing about the cluster."""
    return Health(status="ok")


def _occupants(gangs: Iterable[Gang], caller: Principal) -> defaultdict[str, list[Occupant]]:
    """The workers on each node that have not ended, as far as the master has read."""
    found = defaultdict[str, list[Occupant]](list)
    for gang in gangs:
        job = gang.job.id if caller.sees(gang.job.owner) else None
        for worker in gang.workers:
            if not worker.state.ended:
                occupant = Occupant(job=job, role=worker.role, role_rank=worker.role_rank, state=worker.state)
                found[worker.node].append(occupant)
    return found


def _workload(catalogue: Catalogue, name: str) -> WorkloadDocument:
    workload = catalogue.workloads[name]
    roles = {
        role: RoleDocument(
            default=count.default, least=count.least, most=count.most, expendable=role in workload.expendable
        )
        for role, count in workload.roles.items()
    }
    return WorkloadDocument(
        name=workload.name,
        summary=workload.summary,
        roles=roles,
        params=schema_of(workload.params),
        metrics=[MetricDocument.model_validate(one, from_attributes=True) for one in workload.metrics],
        example=catalogue.example(name),
    )
