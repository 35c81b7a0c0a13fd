"""Nodes: who has registered."""

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
    """Nodes as read in one go."""

    known: dict[str, NodeRecord] = field(default_factory=dict[str, NodeRecord])
    """By name, and in that order."""
    unreadable: dict[str, str] = field(default_factory=dict[str, str])
    """Those whose rows can't be read, and what of them."""


@dataclass(frozen=True, slots=True)
class Incarnation:
    """Which incarnation of a node is registered, and whether it takes work."""

    started: str
    draining: bool


async def put(connection: AsyncConnection, spec: NodeSpec, now: datetime) -> None:
    """Store a node, in place of an older incarnation of the same name."""
    await remove(connection, spec.name)
    values = {"name": spec.name, "spec": spec, "started": spec.started, "draining": False, "registered_at": now}
    await connection.execute(insert(nodes).values(**values))


async def find(connection: AsyncConnection, name: str) -> NodeRecord | None:
    """The node of that name, if it has registered and can be read: else it has to register again."""
    rows = await connection.execute(select(nodes).where(nodes.c.name == name))
    return next(readable(rows, _record, "node"), None)


async def incarnation(connection: AsyncConnection, name: str) -> Incarnation | None:
    """The registered incarnation of a node, also where its row can't be read otherwise."""
    return (await incarnations(connection, [name])).get(name)


async def incarnations(connection: AsyncConnection, names: Iterable[str]) -> dict[str, Incarnation]:
    """The registered incarnations of those of `names` that are known."""
    query = select(nodes.c.name, nodes.c.started, nodes.c.draining).where(nodes.c.name.in_(tuple(names)))
    return {row.name: Incarnation(row.started, row.draining) for row in await connection.execute(query)}


async def load(connection: AsyncConnection, among: Iterable[str] | None = None) -> Nodes:
    """The nodes of `among`, or all, and those that can't be read."""
    query = select(nodes) if among is None else select(nodes).where(nodes.c.name.in_(tuple(among)))
    found = Nodes()
    for row in await connection.execute(query.order_by(nodes.c.name)):
        try:
            found.known[row.name] = _record(row)
        except UnreadableRow as error:
            found.unreadable[row.name] = str(error)
    return found


async def list_all(connection: AsyncConnection) -> list[NodeRecord]:
    """All nodes by name; one that can't be read is left out."""
    return list(readable(await connection.execute(select(nodes).order_by(nodes.c.name)), _record, "node"))


async def set_draining(connection: AsyncConnection, name: str, draining: bool) -> None:
    """Store whether the node takes no more work."""
    await connection.execute(update(nodes).where(nodes.c.name == name).values(draining=draining))


async def remove(connection: AsyncConnection, name: str) -> None:
    """Forget a node; nothing happens if it is not known."""
    await connection.execute(delete(nodes).where(nodes.c.name == name))


def _record(row: Row[Any]) -> NodeRecord:
    return read(NodeRecord, row)
