"""`/internal/nodes`: how nodes register, report what they run, and learn what they should."""

from typing import Any, cast

from fastapi import APIRouter, Depends, HTTPException, Request, Response

from rolecall import __version__
from rolecall.master import registry
from rolecall.master.api.auth import Running, needs
from rolecall.spec.access import Scope
from rolecall.spec.node import NodeSpec
from rolecall.spec.role import Role
from rolecall.spec.wire import ClusterInfo, Desired, Heartbeat, Registered

router = APIRouter(prefix="/internal/nodes", tags=["nodes"], dependencies=[Depends(needs(Scope.NODE))])


async def _known_role(request: Request) -> None:
    """Let a node of a newer release wait whose role this master doesn't know; asked before the body is checked."""
    try:
        body: Any = await request.json()
    except ValueError:
        return  # What is no JSON is refused with the body.
    role = cast(dict[str, Any], body).get("role") if isinstance(body, dict) else None
    if isinstance(role, str) and role not in set(Role):
        raise HTTPException(
            503, f"this master (version {__version__}) has no role {role!r}; upgrade the master before its nodes"
        )


@router.post("", summary="Register a node", dependencies=[Depends(_known_role)])
async def register(spec: NodeSpec, master: Running) -> Registered:
    """Enter the cluster, or enter it again after a restart: then the workers of the earlier life are lost."""
    await registry.register(master, spec)
    return Registered(
        heartbeat_s=registry.longest_wait_s(master),
        master_version=__version__,
        node_timeout_s=master.settings.node_timeout_s,
    )


@router.post("/{name}/heartbeat", summary="Report and ask", response_model=Desired)
async def heartbeat(name: str, beat: Heartbeat, master: Running) -> Response:
    """Take in what the node runs; answer with what it should run, at once or as soon as that changes.

    A heartbeat that brings no news, and gets none, is answered from memory (see `master.answers`).
    """
    await registry.receive(master, name, beat)
    answer = await registry.next_answer(master, name, beat)
    return Response(answer.body, media_type="application/json")


@router.get("/{name}/surroundings", summary="Look around")
async def cluster(name: str, master: Running) -> ClusterInfo:
    """What a node measures itself against: the master's clock and version, and who else is there."""
    return await registry.cluster_info(master, name)


@router.delete("/{name}", status_code=204, summary="Leave")
async def leave(name: str, master: Running) -> None:
    """Take a node out of the cluster; what it still runs is lost."""
    await registry.leave(master, name)
