"""The checks of the network: findings from routes, facts, probes and measurements. Pure.

The messages about the route to the master are about one node ("its calls to …"), to be shown after the node's name.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import ip_address
from typing import NamedTuple

from rolecall.network.facts import Facts
from rolecall.network.links import Link
from rolecall.network.pairs import Pair, Speed
from rolecall.spec.finding import Finding, Level, NodeFinding
from rolecall.spec.node import is_loopback
from rolecall.spec.visible import listed

DAY_S = 86_400
CERTIFICATE_WARNING_S = 14 * DAY_S
_MAX_NAMES = 3


class SpeedBounds(NamedTuple):
    """The bounds of a good speed."""

    ping_ms: float
    """A longer round trip of a small call is a warning."""
    mb_per_s: float
    """A lower bandwidth in either direction is a warning."""


def route(host: str, resolved: Sequence[str], interface: str, address: str, remote_nodes: int) -> Finding:
    """The route to the master at `host`, which must allow the `remote_nodes` to reach the workers."""
    if remote_nodes and is_loopback(address):
        return Finding(
            check="network",
            level=Level.ERROR,
            message=f"its address {address} is a loopback address: {remote_nodes} nodes of other hosts can't reach it",
            remedy="set its MASTER_ADDR to a name or address of the master that other machines and containers reach",
        )
    families = [ip_address(one.partition("%")[0]).version for one in resolved]
    if len(families) > len(set(families)):
        return Finding(
            check="network",
            level=Level.WARNING,
            message=f"its MASTER_ADDR={host} resolves to several addresses: {', '.join(resolved)}",
            remedy="set MASTER_ADDR to a name that resolves only to the master",
        )
    message = f"it reaches the master {host} ({', '.join(resolved)}) by {interface}, where it has {address}"
    return Finding(check="network", level=Level.OK, message=message)


def no_route(host: str, reason: str) -> Finding:
    """A node that has lost its route to the master."""
    remedy = "check whether DNS still resolves the name, and whether the network is still attached"
    message = f"it no longer has a route to MASTER_ADDR={host}: {reason}"
    return Finding(check="network", level=Level.WARNING, message=message, remedy=remedy)


def plain_http(url: str, *, leaves_machine: bool) -> Finding:
    if not leaves_machine:
        return Finding(check="tls", level=Level.OK, message=f"its calls to {url} stay on this machine")
    return Finding(
        check="tls",
        level=Level.WARNING,
        message=f"its calls to {url} leave this machine in clear text: tokens, parameters, logs and checkpoints",
        remedy="give the master ROLECALL_TLS_CERT and ROLECALL_TLS_KEY, and the nodes ROLECALL_TLS_CA",
    )


def certificate(left_s: float) -> Finding:
    """The remaining validity of the master's certificate."""
    message = f"the master's certificate expires in {max(0.0, left_s) / DAY_S:.0f} days"
    if left_s > CERTIFICATE_WARNING_S:
        return Finding(check="tls", level=Level.OK, message=message)
    remedy = "renew the files of ROLECALL_TLS_CERT and ROLECALL_TLS_KEY; the master reloads them automatically"
    return Finding(check="tls", level=Level.WARNING, message=message, remedy=remedy)


def compare_facts(facts: Sequence[Facts]) -> list[NodeFinding]:
    """Findings from the facts of all nodes: interfaces, names, versions."""
    spans = any(not is_loopback(one.address) for one in facts)
    return [
        *(_interface(one, spans=spans) for one in facts),
        *(_name(one) for one in facts),
        *_alike(facts, "torch", Level.ERROR, lambda one: one.torch, "install the same torch on all nodes"),
        *_alike(facts, "rolecall", Level.ERROR, lambda one: one.rolecall, "run the same Rolecall on all nodes"),
        *_alike(facts, "python", Level.WARNING, lambda one: one.python, "run the same Python on all nodes"),
    ]


def classify_links(links: Sequence[Link]) -> Iterator[NodeFinding]:
    """One finding for each unreachable direction, and one for each pair of nodes with both directions reachable."""
    times = {(link.origin, link.target): link.seconds for link in links if link.seconds is not None}
    for link in links:
        pair = link.origin, link.target
        there, back = times.get(pair), times.get((link.target, link.origin))
        if link.error:
            yield NodeFinding(nodes=pair, check="reach", level=Level.ERROR, message=link.error, remedy=link.remedy)
        elif there is not None and back is not None and link.origin < link.target:
            took = f"reachable in both directions, {1e3 * there:.1f} and {1e3 * back:.1f} ms"
            yield NodeFinding(nodes=pair, check="reach", level=Level.OK, message=took)


def classify_speed(pair: Pair, speed: Speed, bounds: SpeedBounds) -> list[NodeFinding]:
    """A finding for the round trip and one for the bandwidth."""
    took, slow = f"{speed.ping_ms:.2f} ms", speed.ping_ms > bounds.ping_ms
    bound = f"longer than {bounds.ping_ms:g} ms"
    remedy = "move the nodes closer together, or leave cores of their machines idle: every look-up waits this long"
    ping = _measured(pair, "ping", took, slow=slow, bound=bound, remedy=remedy)
    rates = f"{_shown(speed.sent_mb_per_s)} MB/s there, {_shown(speed.received_mb_per_s)} MB/s back"
    slow = min(speed.sent_mb_per_s, speed.received_mb_per_s) < bounds.mb_per_s
    bound = f"less than {bounds.mb_per_s:g} MB/s"
    remedy = "check what else uses the network, and its speed and MTU"
    return [ping, _measured(pair, "bandwidth", rates, slow=slow, bound=bound, remedy=remedy)]


def stalled(pair: Pair, why: str) -> NodeFinding:
    """RPC fails between nodes that reach each other."""
    return _rpc(
        pair,
        Level.ERROR,
        f"they reach each other, but RPC fails: {why}",
        "if small packets pass and large ones don't, check the MTU of every network between them",
    )


def unmeasured(nodes: Sequence[str]) -> NodeFinding:
    """The finding that speeds are missing, and the reason."""
    return _rpc(
        nodes,
        Level.WARNING,
        "ping and bandwidth are not measured while a node is unreachable: RPC needs all links",
        "open the links that the check `reach` names, or leave nodes out",
    )


def not_started(nodes: Sequence[str], why: str) -> NodeFinding:
    """All nodes are reachable, but the gang's RPC does not start."""
    return _rpc(
        nodes,
        Level.ERROR,
        f"the nodes reach each other, but RPC does not start: {why}",
        "read the log of each node's worker, and check fewer nodes to find the one that causes it",
    )


def left_out(skipped: Sequence[Pair], guilty: Mapping[str, Sequence[str]]) -> Iterator[NodeFinding]:
    """One finding for each guilty node that was not measured with the other nodes, because its calls stalled."""
    for node, others in guilty.items():
        rest = sum(node in pair for pair in skipped)
        if not rest:
            continue
        yield _rpc(
            (node,),
            Level.WARNING,
            f"its calls stall with {listed(others, _MAX_NAMES)}, so it was not measured with {rest} more",
            "fix the links where RPC fails, then check the node again",
        )


def cut_short(left: Sequence[Pair], total: int, seconds: float, guilty: Mapping[str, Sequence[str]]) -> NodeFinding:
    """The finding that the measurements ended before all pairs were measured."""
    stalls = f", because the calls of {listed(guilty, _MAX_NAMES)} stall" if guilty else ""
    return _rpc(
        sorted({node for pair in left for node in pair}),
        Level.WARNING,
        f"{len(left)} of {total} pairs were not measured in {seconds:.0f} s{stalls}",
        "fix or leave out the nodes that stall or are slow, or run `preflight` with a longer `measure_s`",
    )


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


def _rpc(nodes: Sequence[str], level: Level, message: str, remedy: str) -> NodeFinding:
    return NodeFinding(nodes=tuple(nodes), check="rpc", level=level, message=message, remedy=remedy)


def _measured(pair: Pair, check: str, figures: str, *, slow: bool, bound: str, remedy: str) -> NodeFinding:
    if not slow:
        return NodeFinding(nodes=pair, check=check, level=Level.OK, message=figures)
    return NodeFinding(nodes=pair, check=check, level=Level.WARNING, message=f"{figures}, {bound}", remedy=remedy)


def _shown(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.2f}"
