"""Findings from routes, probes and measurements."""

import pytest

from rolecall.network.findings import SpeedBounds, classify_links, classify_speed, no_route, route, stalled
from rolecall.network.links import Link
from rolecall.network.pairs import Speed
from rolecall.spec.finding import Finding, Level

PAIR = ("a", "b")
BOUNDS = SpeedBounds(ping_ms=20.0, mb_per_s=10.0)


@pytest.mark.parametrize(
    ("finding", "level", "text"),
    [
        (route("master", ["10.0.0.1"], "eth0", "10.0.0.2", 3), Level.OK, "by eth0, where it has 10.0.0.2"),
        (route("localhost", ["127.0.0.1", "::1"], "lo", "127.0.0.1", 0), Level.OK, "by lo"),
        (route("localhost", ["127.0.0.1"], "lo", "127.0.0.1", 3), Level.ERROR, "3 nodes of other hosts can't reach"),
        (route("master", ["10.0.0.1", "10.0.0.9"], "eth0", "10.0.0.2", 3), Level.WARNING, "10.0.0.1, 10.0.0.9"),
        (
            no_route("master", "Name or service not known"),
            Level.WARNING,
            "MASTER_ADDR=master: Name or service",
        ),
    ],
)
def test_levels_and_messages_about_the_route_to_the_master(finding: Finding, level: Level, text: str) -> None:
    assert finding.level is level
    assert text in finding.message
    assert bool(finding.remedy) == (level is not Level.OK)


@pytest.mark.parametrize(
    ("speed", "levels"),
    [
        (Speed(20.0, 10.0, 10.0), [Level.OK, Level.OK]),
        (Speed(20.1, 900.0, 900.0), [Level.WARNING, Level.OK]),
        (Speed(0.3, 9.9, 900.0), [Level.OK, Level.WARNING]),
        (Speed(0.3, 900.0, 9.9), [Level.OK, Level.WARNING]),
    ],
)
def test_slow_is_a_warning_with_a_remedy(speed: Speed, levels: list[Level]) -> None:
    findings = classify_speed(PAIR, speed, BOUNDS)
    assert [finding.level for finding in findings] == levels
    assert all(bool(finding.remedy) == (finding.level is not Level.OK) for finding in findings)
    assert all(finding.nodes == PAIR for finding in findings)


def test_a_rate_near_nothing_is_not_rounded_away() -> None:
    assert "0.01 MB/s there" in classify_speed(PAIR, Speed(0.3, 0.0123, 900.0), BOUNDS)[1].message


def test_reachable_links_are_one_finding_per_pair_and_unreachable_ones_per_direction() -> None:
    links = [
        Link(origin="a", target="b", seconds=0.001),
        Link(origin="b", target="a", seconds=0.002),
        Link(origin="a", target="c", seconds=0.001),
        Link(origin="c", target="a", error="c can't reach a", remedy="mend it"),
    ]
    findings = {finding.nodes: finding for finding in classify_links(links)}
    assert findings[PAIR].message == "reachable in both directions, 1.0 and 2.0 ms"
    assert findings["c", "a"].level is Level.ERROR
    assert findings["c", "a"].remedy == "mend it"
    assert len(findings) == 2


def test_a_stall_is_an_error() -> None:
    finding = stalled(PAIR, "RPC ran for more than 10000 ms")
    assert finding.level is Level.ERROR
    assert "10000 ms" in finding.message
    assert "MTU" in finding.remedy
