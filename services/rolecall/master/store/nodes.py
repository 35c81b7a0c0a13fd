from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Row, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.store.records import NodeRecord, UnreadableRow, read, readable
from rolecall.master.store.schema import nodes
from rolecall.spec.node import NodeSpec


@dataclass(frozen=True, slots=True)
class Nodes:
    """The result of reading nodes."""

    known: dict[str, NodeRecord] = field(default_factory=dict[str, NodeRecord])
    """By name, sorted."""
    unreadable: dict[str, str] = field(default_factory=dict[str, str])
    """Nodes that can't be read, with the reason."""


@dataclass(frozen=True, slots=True)
class Incarnation:
    """The registered incarnation of a node."""

    started: str
    draining: bool


async def put(connection: AsyncConnection, spec: NodeSpec, now: datetime) -> None:
    """Store a node; replaces an earlier incarnation with the same name."""
    await remove(connection, spec.name)
    values = {"name": spec.name, "spec": spec, "started": spec.started, "draining": False, "registered_at": now}
    await connection.execute(insert(nodes).values(**values))


async def find(connection: AsyncConnection, name: str) -> NodeRecord | None:
    """The node with this name, if it has registered and can be read."""
    rows = await connection.execute(select(nodes).where(nodes.c.name == name))
    return next(readable(rows, _record, "node"), None)


async def incarnation(connection: AsyncConnection, name: str) -> Incarnation | None:
    """The registered incarnation of a node, even if the rest of its row can't be read."""
    return (await incarnations(connection, [name])).get(name)


async def incarnations(connection: AsyncConnection, names: Iterable[str]) -> dict[str, Incarnation]:
    """The registered incarnations of those of `names` that are known."""
    query = select(nodes.c.name, nodes.c.started, nodes.c.draining).where(nodes.c.name.in_(tuple(names)))
    return {row.name: Incarnation(row.started, row.draining) for row in await connection.execute(query)}


async def load(connection: AsyncConnection, among: Iterable[str] | None = None) -> Nodes:
    """The nodes of `among`, or all nodes, including unreadable ones."""
    query = select(nodes) if among is None else select(nodes).where(nodes.c.name.in_(tuple(among)))
    found = Nodes()
    for row in await connection.execute(query.order_by(nodes.c.name)):
        try:
            found.known[row.name] = _record(row)
        except UnreadableRow as error:
            found.unreadable[row.name] = str(error)
    return found


async def list_all(connection: AsyncConnection) -> list[NodeRecord]:
    """All readable nodes, sorted by name."""
    return list(readable(await connection.execute(select(nodes).order_by(nodes.c.name)), _record, "node"))


async def set_draining(connection: AsyncConnection, name: str, draining: bool) -> None:
    """Store whether the node is draining."""
    await connection.execute(update(nodes).where(nodes.c.name == name).values(draining=draining))


async def remove(connection: AsyncConnection, name: str) -> None:
    await connection.execute(delete(nodes).where(nodes.c.name == name))


def _record(row: Row[Any]) -> NodeRecord:
    return read(NodeRecord, row)
