"""What the cluster is and does: workloads, nodes, health, Prometheus."""

from typing import Any

from fastapi import APIRouter, Depends, HTTPException, Response
from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy.exc import SQLAlchemyError

from rolecall.master.api.auth import Running, require_user
from rolecall.master.metrics import exposition
from rolecall.master.space import Volume
from rolecall.master.store import nodes
from rolecall.spec.model import Value
from rolecall.spec.node import NodeState
from rolecall.spec.role import Role
from rolecall.spec.workload import Workload

router = APIRouter(tags=["cluster"], dependencies=[Depends(require_user)])
open_router = APIRouter(tags=["cluster"])


class RoleDocument(Value):
    """How many workers of a role a workload takes."""

    default: int
    least: int
    most: int
    expendable: bool


class WorkloadDocument(Value):
    """A workload: what `POST /jobs` may ask of it."""

    name: str
    summary: str
    roles: dict[Role, RoleDocument]
    params: dict[str, Any]
    """The JSON schema of its parameters."""


class WorkloadList(Value):
    """`GET /workloads`."""

    workloads: list[WorkloadDocument]
    broken: dict[str, str]
    """Plug-ins that could not be loaded, and why."""


class NodeList(Value):
    """`GET /nodes`."""

    nodes: list[NodeState]


class Health(Value):
    """Whether the program answers."""

    status: str


class Readiness(Health):
    """Whether the master can work."""

    volume: Volume
    """How much room its data folder has."""


@router.get("/workloads", summary="List workloads")
async def list_workloads(master: Running) -> WorkloadList:
    """What can be run."""
    known = master.catalogue.workloads
    return WorkloadList(
        workloads=[_workload(known[name]) for name in sorted(known)], broken=dict(master.catalogue.broken)
    )


@router.get("/workloads/{name}", summary="Show a workload")
async def show_workload(name: str, master: Running) -> WorkloadDocument:
    """Its roles, and the JSON schema of its parameters."""
    return _workload(master.catalogue.get(name))


@router.get("/nodes", summary="List nodes")
async def list_nodes(master: Running) -> NodeList:
    """Who has registered, and who is alive."""
    async with master.database.read() as connection:
        known = await nodes.everything(connection)
    return NodeList(nodes=master.presence.states(known))


@router.get("/readyz", summary="Whether the master can work")
async def readyz(master: Running) -> Readiness:
    """200 when the database answers, else 503."""
    try:
        await master.database.ping()
    except SQLAlchemyError as error:
        raise HTTPException(503, f"the database does not answer: {error}") from None
    return Readiness(status="ready", volume=master.reserve.look())


@router.get("/metrics", summary="Prometheus metrics", response_class=Response)
async def metrics(master: Running) -> Response:
    """The state of the cluster and of its running jobs in Prometheus' text format."""
    return Response(await exposition(master), media_type=CONTENT_TYPE_LATEST)


@open_router.get("/healthz", summary="Whether the program answers")
async def healthz() -> Health:
    """Open to all; says nothing about the cluster."""
    return Health(status="ok")


def _workload(workload: Workload) -> WorkloadDocument:
    roles = {
        role: RoleDocument(
            default=count.default, least=count.least, most=count.most, expendable=role in workload.expendable
        )
        for role, count in workload.roles.items()
    }
    params = workload.params.model_json_schema()
    return WorkloadDocument(name=workload.name, summary=workload.summary, roles=roles, params=params)
