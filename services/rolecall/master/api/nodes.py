"""The routes `/internal/nodes`, with which nodes register, report their workers and get the desired ones."""

from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, Header, HTTPException, Request, Response

from rolecall import __version__
from rolecall.master import registry
from rolecall.master.api.auth import Running, needs
from rolecall.master.api.error_handlers import documented
from rolecall.master.api.parameters import NodeName
from rolecall.spec.access import Scope
from rolecall.spec.node import NodeSpec
from rolecall.spec.role import Role
from rolecall.spec.wire import INCARNATION_HEADER, ClusterInfo, Desired, Heartbeat, Registered

router = APIRouter(prefix="/internal/nodes", tags=["nodes"], dependencies=[Depends(needs(Scope.NODE))])


async def _known_role(request: Request) -> None:
    """Answer 503 to a node of a newer release with an unknown role, before the body is validated."""
    try:
        body: Any = await request.json()
    except ValueError:
        return  # The validation of the body rejects it.
    role = cast(dict[str, Any], body).get("role") if isinstance(body, dict) else None
    if isinstance(role, str) and role not in set(Role):
        raise HTTPException(
            503, f"this master (version {__version__}) has no role {role!r}; upgrade the master before its nodes"
        )


@router.post("", summary="Register a node", dependencies=[Depends(_known_role)], responses=documented(409))
async def register_node(spec: NodeSpec, master: Running) -> Registered:
    """Register a node, also after a restart. The workers of its previous incarnation are then lost."""
    await registry.register(master, spec)
    return Registered(
        heartbeat_s=registry.longest_wait_s(master),
        master_version=__version__,
        node_timeout_s=master.presence.longest_silence_s,
    )


@router.post(
    "/{name}/heartbeat",
    summary="Report the workers and get the desired ones",
    response_model=Desired,
    responses=documented(409),
)
async def send_heartbeat(name: NodeName, beat: Heartbeat, master: Running) -> Response:
    """Record the workers that the node runs, and return those that it should run.

    The response is delayed while nothing changes. If neither side has changes, it comes from memory (see
    `master.answers`).
    """
    await registry.receive(master, name, beat)
    answer = await registry.next_answer(master, name, beat)
    return Response(answer.body, media_type="application/json")


# Nodes of release 0.1 call this path.
@router.get("/{name}/surroundings", summary="Get the cluster's properties for a self-check")
async def show_cluster_info(name: NodeName, master: Running) -> ClusterInfo:
    """Return the master's clock and version, and the number of other hosts."""
    return await registry.cluster_info(master, name)


@router.delete("/{name}", status_code=204, summary="Remove a node")
async def remove_node(
    name: NodeName, master: Running, started: Annotated[str | None, Header(alias=INCARNATION_HEADER)] = None
) -> None:
    """Remove a node from the cluster, unless it has restarted since. Workers that it still runs are lost."""
    await registry.leave(master, name, started)
