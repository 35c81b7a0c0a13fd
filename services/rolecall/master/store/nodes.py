"""Nodes: who has registered."""

from datetime import datetime

from sqlalchemy import delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.store.records import NodeRecord, read
from rolecall.master.store.schema import nodes
from rolecall.spec.node import NodeSpec


async def put(connection: AsyncConnection, spec: NodeSpec, now: datetime) -> None:
    """Store a node, in place of an older life of the same name."""
    await remove(connection, spec.name)
    values = {"name": spec.name, "spec": spec, "started": spec.started, "draining": False, "registered_at": now}
    await connection.execute(insert(nodes).values(**values))


async def find(connection: AsyncConnection, name: str) -> NodeRecord | None:
    """The node of that name, if it has registered."""
    row = (await connection.execute(select(nodes).where(nodes.c.name == name))).one_or_none()
    return None if row is None else read(NodeRecord, row)


async def everything(connection: AsyncConnection) -> list[NodeRecord]:
    """All nodes by name."""
    return [read(NodeRecord, row) for row in await connection.execute(select(nodes).order_by(nodes.c.name))]


async def set_draining(connection: AsyncConnection, name: str, draining: bool) -> None:
    """Store whether the node takes no more work."""
    await connection.execute(update(nodes).where(nodes.c.name == name).values(draining=draining))


async def remove(connection: AsyncConnection, name: str) -> None:
    """Forget a node; nothing happens if it is not known."""
    await connection.execute(delete(nodes).where(nodes.c.name == name))
