"""The route `/nodes/{node}/preflight`: the findings about a node."""

import logging
from datetime import datetime

from fastapi import APIRouter, Depends
from pydantic import TypeAdapter, ValidationError
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.logs import about
from rolecall.master.access import Principal
from rolecall.master.api.auth import USERS, Caller, Running, needs
from rolecall.master.api.parameters import NodeName
from rolecall.master.field_errors import unknown
from rolecall.master.store import jobs, nodes
from rolecall.master.store.records import JobRecord
from rolecall.spec.api import Examination, Preflight
from rolecall.spec.errors import NotFound
from rolecall.spec.finding import NodeFinding

router = APIRouter(prefix="/nodes", tags=["cluster"], dependencies=[Depends(needs(*USERS))])
WORKLOAD = "preflight"
_LOOK_BACK = 3
"""The number of newest examinations of a node to read, in case a result can't be read. Each can have a mebibyte."""
_FINDINGS = TypeAdapter(tuple[NodeFinding, ...])
_LOG = logging.getLogger(__name__)


@router.get("/{node}/preflight", summary="Show the findings about a node")
async def show_preflight(node: NodeName, master: Running, caller: Caller) -> Preflight:
    """Return the results of the node's self-check, and those of the newest `preflight` job about its connections.

    Only jobs that had a worker on the node count, and only those of the token itself and of tokens with the scope
    `admin`, because users can choose the limits of such a job and therefore its warnings.
    """
    async with master.database.read() as connection:
        known = {state.spec.name: state for state in master.presence.states(await nodes.list_all(connection))}
        if node not in known:
            error = unknown("node", "node", node, known)
            raise NotFound(f"{error['message']}; there are: {error['legal']}")
        trusted = {caller.name} | master.access.admins
        network = await _newest_about(node, connection, trusted, caller, master.clock.now())
    state = known[node]
    return Preflight(node=node, alive=state.alive, findings=state.findings, network=network)


async def _newest_about(
    node: str, connection: AsyncConnection, owners: set[str], caller: Principal, now: datetime
) -> Examination | None:
    """The newest examination of `node` by `owners`. Reads one job at a time, because results can be large."""
    for job_id in await jobs.succeeded(connection, WORKLOAD, node, owners, _LOOK_BACK):
        job = await jobs.get(connection, job_id)
        findings = tuple(finding for finding in _findings(job) if node in finding.nodes)
        if findings and job.ended_at:
            age_s = (now - job.ended_at).total_seconds()
            shown = job.id if caller.reads_all or caller.sees(job.owner) else None
            return Examination(job=shown, measured_at=job.ended_at, age_s=round(age_s, 1), findings=findings)
    return None


def _findings(job: JobRecord) -> tuple[NodeFinding, ...]:
    """The findings of the job; empty if they can't be read."""
    try:
        return _FINDINGS.validate_python((job.result or {}).get("findings", ()))
    except ValidationError as error:
        fields = about("findings_ignored", job=job.id)
        _LOG.warning("the findings of job %s are ignored: %s", job.id, error, extra=fields)
        return ()
