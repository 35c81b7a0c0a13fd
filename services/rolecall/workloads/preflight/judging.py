"""What was seen and measured of a way between two nodes, as findings. Pure."""

from collections.abc import Iterator, Sequence

from rolecall.runtime.reach import Way
from rolecall.spec.finding import Level
from rolecall.spec.preflight import NodeFinding
from rolecall.workloads.preflight.measuring import Speed
from rolecall.workloads.preflight.params import Params

Pair = tuple[str, str]


def judge_ways(ways: Sequence[Way]) -> Iterator[NodeFinding]:
    """One finding for each direction that is cut, and one for each pair of nodes with both directions open."""
    times = {(way.origin, way.target): way.seconds for way in ways if way.seconds is not None}
    for way in ways:
        pair = way.origin, way.target
        there, back = times.get(pair), times.get((way.target, way.origin))
        if way.error:
            yield NodeFinding(nodes=pair, check="reach", level=Level.ERROR, message=way.error, remedy=way.remedy)
        elif there is not None and back is not None and way.origin < way.target:
            took = f"open in both directions, {1e3 * there:.1f} and {1e3 * back:.1f} ms"
            yield NodeFinding(nodes=pair, check="reach", level=Level.OK, message=took)


def judge_speed(pair: Pair, speed: Speed, params: Params) -> list[NodeFinding]:
    """A finding for the round trip and one for the bandwidth."""
    return [_ping(pair, speed, params), _bandwidth(pair, speed, params)]


def stalled(pair: Pair, why: str) -> NodeFinding:
    """RPC fails between nodes that reach each other."""
    return NodeFinding(
        nodes=pair,
        check="rpc",
        level=Level.ERROR,
        message=f"they reach each other, but RPC fails: {why}",
        remedy="where small packets pass and large ones don't, look at the MTU of every network on the way",
    )


def unmeasured(nodes: Sequence[str]) -> NodeFinding:
    """Why there are no speeds."""
    return NodeFinding(
        nodes=tuple(nodes),
        check="rpc",
        level=Level.WARNING,
        message="ping and bandwidth are not measured as long as a way is cut: RPC needs all of them",
        remedy="open the ways that `reach` names, or leave nodes out",
    )


def _ping(pair: Pair, speed: Speed, params: Params) -> NodeFinding:
    took = f"{speed.ping_ms:.2f} ms"
    if speed.ping_ms <= params.slow_ping_ms:
        return NodeFinding(nodes=pair, check="ping", level=Level.OK, message=took)
    return NodeFinding(
        nodes=pair,
        check="ping",
        level=Level.WARNING,
        message=f"{took}, longer than {params.slow_ping_ms:g} ms",
        remedy="bring the nodes closer together, or leave their machines idle cores: every look-up waits so long",
    )


def _bandwidth(pair: Pair, speed: Speed, params: Params) -> NodeFinding:
    rates = f"{_shown(speed.sent_mb_per_s)} MB/s there, {_shown(speed.received_mb_per_s)} MB/s back"
    if min(speed.sent_mb_per_s, speed.received_mb_per_s) >= params.slow_mb_per_s:
        return NodeFinding(nodes=pair, check="bandwidth", level=Level.OK, message=rates)
    return NodeFinding(
        nodes=pair,
        check="bandwidth",
        level=Level.WARNING,
        message=f"{rates}, less than {params.slow_mb_per_s:g} MB/s",
        remedy="see what else uses the network, and which speed and MTU its links have",
    )


def _shown(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.2f}"
