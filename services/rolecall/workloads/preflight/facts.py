"""The facts of a node about itself, and the findings from the comparison of all nodes' facts."""

import platform
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from rolecall import __version__
from rolecall.network.interfaces import interface_of
from rolecall.runtime.context import WorkerContext
from rolecall.spec.finding import Level, NodeFinding
from rolecall.spec.model import Value
from rolecall.spec.node import is_loopback


class Facts(Value):
    """One node's facts."""

    node: str
    address: str
    interface: str
    host: str
    """The machine's or container's own name."""
    resolved: str | None
    """The address that its own name stands for, if it has one."""
    python: str
    torch: str
    rolecall: str = __version__


def collect(context: WorkerContext[Any]) -> Facts:
    """The facts of this worker's node."""
    node = context.launch.worker.node
    address = context.launch.gang.addresses[node]
    return Facts(
        node=node,
        address=address,
        interface=interface_of(address) or "no interface",
        host=socket.gethostname(),
        resolved=_resolved(socket.gethostname()),
        python=".".join(platform.python_version_tuple()[:2]),
        torch=torch.__version__,
    )


def compare(facts: Sequence[Facts]) -> list[NodeFinding]:
    """Findings from the facts of all nodes: interfaces, names, versions."""
    spans = any(not is_loopback(one.address) for one in facts)
    return [
        *(_interface(one, spans=spans) for one in facts),
        *(_name(one) for one in facts),
        *_alike(facts, "torch", Level.ERROR, lambda one: one.torch, "install the same torch on all nodes"),
        *_alike(facts, "rolecall", Level.ERROR, lambda one: one.rolecall, "run the same Rolecall on all nodes"),
        *_alike(facts, "python", Level.WARNING, lambda one: one.python, "run the same Python on all nodes"),
    ]


def _interface(one: Facts, *, spans: bool) -> NodeFinding:
    if spans and is_loopback(one.address):
        return NodeFinding(
            nodes=(one.node,),
            check="interface",
            level=Level.ERROR,
            message=f"its address is {one.address}, which only its own machine reaches, and other nodes run elsewhere",
            remedy="set its MASTER_ADDR to an address on the network that all nodes share",
        )
    where = f"{one.interface} ({one.address})"
    return NodeFinding(nodes=(one.node,), check="interface", level=Level.OK, message=where)


def _name(one: Facts) -> NodeFinding:
    if one.resolved and (is_loopback(one.address) or not is_loopback(one.resolved)):
        message = f"its host name {one.host} is {one.resolved}"
        return NodeFinding(nodes=(one.node,), check="name", level=Level.OK, message=message)
    meaning = f"stands for {one.resolved}, a loopback address" if one.resolved else "can't be resolved"
    return NodeFinding(
        nodes=(one.node,),
        check="name",
        level=Level.WARNING,
        message=f"its host name {one.host} {meaning}",
        remedy=f"let {one.host} resolve to {one.address}: libraries may use the name, though Rolecall does not",
    )


def _alike(
    facts: Sequence[Facts], check: str, level: Level, of: Callable[[Facts], str], remedy: str
) -> list[NodeFinding]:
    """One finding for each node whose version is not the most frequent one; or one for all."""
    usual, _ = Counter(sorted(map(of, facts))).most_common(1)[0]
    odd = [one for one in facts if of(one) != usual]
    if not odd:
        nodes = tuple(one.node for one in facts)
        return [NodeFinding(nodes=nodes, check=check, level=Level.OK, message=f"all nodes have {check} {usual}")]
    return [
        NodeFinding(
            nodes=(one.node,),
            check=check,
            level=level,
            message=f"it has {check} {of(one)}, most nodes have {usual}",
            remedy=remedy,
        )
        for one in odd
    ]


def _resolved(host: str) -> str | None:
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except socket.gaierror:
        return None
