"""Turns probes and measurements of links into findings. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from rolecall.network.links import Link
from rolecall.spec.finding import Level, NodeFinding
from rolecall.workloads.preflight.measuring import Speed
from rolecall.workloads.preflight.pairs import Pair
from rolecall.workloads.preflight.params import Params

_MAX_NAMES = 3


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


def classify_speed(pair: Pair, speed: Speed, params: Params) -> list[NodeFinding]:
    """A finding for the round trip and one for the bandwidth."""
    return [_ping(pair, speed, params), _bandwidth(pair, speed, params)]


def stalled(pair: Pair, why: str) -> NodeFinding:
    """RPC fails between nodes that reach each other."""
    return NodeFinding(
        nodes=pair,
        check="rpc",
        level=Level.ERROR,
        message=f"they reach each other, but RPC fails: {why}",
        remedy="if small packets pass and large ones don't, check the MTU of every network between them",
    )


def unmeasured(nodes: Sequence[str]) -> NodeFinding:
    """The finding that speeds are missing, and the reason."""
    return NodeFinding(
        nodes=tuple(nodes),
        check="rpc",
        level=Level.WARNING,
        message="ping and bandwidth are not measured while a node is unreachable: RPC needs all links",
        remedy="open the links that the check `reach` names, or leave nodes out",
    )


def not_started(nodes: Sequence[str], why: str) -> NodeFinding:
    """All nodes are reachable, but the gang's RPC does not start."""
    return NodeFinding(
        nodes=tuple(nodes),
        check="rpc",
        level=Level.ERROR,
        message=f"the nodes reach each other, but RPC does not start: {why}",
        remedy="read the log of each node's worker, and check fewer nodes to find the one that causes it",
    )


def left_out(skipped: Sequence[Pair], guilty: Mapping[str, Sequence[str]]) -> Iterator[NodeFinding]:
    """One finding for each guilty node that was not measured with the other nodes, because its calls stalled."""
    for node, others in guilty.items():
        rest = sum(node in pair for pair in skipped)
        if not rest:
            continue
        yield NodeFinding(
            nodes=(node,),
            check="rpc",
            level=Level.WARNING,
            message=f"its calls stall with {_listed(others)}, so it was not measured with {rest} more",
            remedy="fix the links where RPC fails, then check the node again",
        )


def cut_short(left: Sequence[Pair], total: int, seconds: float, guilty: Mapping[str, Sequence[str]]) -> NodeFinding:
    """The finding that the measurements ended before all pairs were measured."""
    stalls = f", because the calls of {_listed(list(guilty))} stall" if guilty else ""
    return NodeFinding(
        nodes=tuple(sorted({node for pair in left for node in pair})),
        check="rpc",
        level=Level.WARNING,
        message=f"{len(left)} of {total} pairs were not measured in {seconds:.0f} s{stalls}",
        remedy="fix or leave out the nodes that stall or are slow, or run `preflight` with a longer `measure_s`",
    )


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def _ping(pair: Pair, speed: Speed, params: Params) -> NodeFinding:
    took, bound = f"{speed.ping_ms:.2f} ms", f"longer than {params.slow_ping_ms:g} ms"
    remedy = "move the nodes closer together, or leave cores of their machines idle: every look-up waits this long"
    return _measured(pair, "ping", took, slow=speed.ping_ms > params.slow_ping_ms, bound=bound, remedy=remedy)


def _bandwidth(pair: Pair, speed: Speed, params: Params) -> NodeFinding:
    rates = f"{_shown(speed.sent_mb_per_s)} MB/s there, {_shown(speed.received_mb_per_s)} MB/s back"
    slow = min(speed.sent_mb_per_s, speed.received_mb_per_s) < params.slow_mb_per_s
    remedy = "check what else uses the network, and its speed and MTU"
    bound = f"less than {params.slow_mb_per_s:g} MB/s"
    return _measured(pair, "bandwidth", rates, slow=slow, bound=bound, remedy=remedy)


def _measured(pair: Pair, check: str, figures: str, *, slow: bool, bound: str, remedy: str) -> NodeFinding:
    if not slow:
        return NodeFinding(nodes=pair, check=check, level=Level.OK, message=figures)
    return NodeFinding(nodes=pair, check=check, level=Level.WARNING, message=f"{figures}, {bound}", remedy=remedy)


def _shown(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.2f}"
