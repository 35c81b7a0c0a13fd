"""Findings from probes and measurements."""

import pytest

from rolecall.network.links import Link
from rolecall.spec.finding import Level
from rolecall.workloads.preflight import Params
from rolecall.workloads.preflight.classify import classify_links, classify_speed, stalled
from rolecall.workloads.preflight.measuring import Speed

PAIR = ("a", "b")


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
    findings = classify_speed(PAIR, speed, Params())
    assert [finding.level for finding in findings] == levels
    assert all(bool(finding.remedy) == (finding.level is not Level.OK) for finding in findings)
    assert all(finding.nodes == PAIR for finding in findings)


def test_a_rate_near_nothing_is_not_rounded_away() -> None:
    assert "0.01 MB/s there" in classify_speed(PAIR, Speed(0.3, 0.0123, 900.0), Params())[1].message


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
