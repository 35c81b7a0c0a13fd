"""The cost of a few stalling nodes for the measurement of many; the clock is the test's."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

import pytest

from rolecall.network.findings import SpeedBounds
from rolecall.network.pairs import Pair, Speed, rounds
from rolecall.network.survey import CALL_S, GRACE_S, Survey
from rolecall.spec.finding import Level, NodeFinding

MEASURE_S = 15.0
BOUNDS = SpeedBounds(ping_ms=20.0, mb_per_s=10.0)


@dataclass
class Network:
    """Measures pairs as a network would on which all calls of some nodes, or of some pairs, stall."""

    count: int
    bad: frozenset[str] = frozenset()
    cut: frozenset[Pair] = frozenset()
    slow_s: float = 0.0
    now: float = 0.0
    asked: list[Pair] = field(default_factory=list[Pair])
    events: list[str] = field(default_factory=list[str])

    def examine(self) -> list[NodeFinding]:
        nodes = [f"n{number}" for number in range(self.count)]
        return list(Survey(nodes, MEASURE_S, BOUNDS, self.measure, self.events.append, lambda: self.now).findings())

    def measure(self, pairs: Sequence[Pair], budget_s: float) -> list[Speed | str]:
        self.asked += pairs
        stalls = [bool(self.bad.intersection(pair)) or pair in self.cut for pair in pairs]
        self.now += max(budget_s, self.slow_s) + (CALL_S if any(stalls) else 0)
        return ["RPC ran for more than 10000 ms" if stall else Speed(0.3, 900.0, 900.0) for stall in stalls]


def of_level(findings: Sequence[NodeFinding], level: Level) -> list[NodeFinding]:
    return [finding for finding in findings if finding.level is level]


def test_every_pair_of_a_sound_network_is_measured_in_the_time_given() -> None:
    network = Network(40)
    findings = network.examine()
    assert {finding.level for finding in findings} == {Level.OK}
    assert len(findings) == 2 * len(list(combinations(range(40), 2)))
    assert network.now == pytest.approx(MEASURE_S)
    assert network.events[-1] == "measured 39 of 39 rounds of pairs"


@pytest.mark.parametrize("count", [5, 13, 40, 200])
def test_one_bad_node_costs_two_stalls_and_all_others_are_measured(count: int) -> None:
    network = Network(count, bad=frozenset({"n3"}))
    findings = network.examine()
    assert network.now <= MEASURE_S + 2 * CALL_S + 1
    assert len(of_level(findings, Level.ERROR)) == 2
    assert len(of_level(findings, Level.OK)) == 2 * len(list(combinations(range(count - 1), 2)))
    (warning,) = of_level(findings, Level.WARNING)
    assert (warning.nodes, warning.check) == (("n3",), "rpc")
    assert f"not measured with {count - 3} more" in warning.message
    assert warning.remedy


def test_stalls_that_no_node_can_be_blamed_for_end_the_measuring_with_all_that_was_found() -> None:
    """One pair in every round, each of other nodes: what is left after the grace is reported with its number."""
    plan = rounds(60)
    seen: set[int] = set()
    cut: set[Pair] = set()
    for pairs in plan:
        fresh = next((pair for pair in pairs if seen.isdisjoint(pair)), None)
        if fresh:
            seen.update(fresh)
            cut.add((f"n{fresh[0]}", f"n{fresh[1]}"))
    network = Network(60, cut=frozenset(cut))
    findings = network.examine()
    assert MEASURE_S + GRACE_S < network.now <= MEASURE_S + GRACE_S + CALL_S + 1
    assert {finding.nodes for finding in of_level(findings, Level.ERROR)} <= cut
    assert len(of_level(findings, Level.OK)) // 2 + len(of_level(findings, Level.ERROR)) == len(network.asked)
    (warning,) = of_level(findings, Level.WARNING)
    assert f"{60 * 59 // 2 - len(network.asked)} of 1770 pairs were not measured" in warning.message


def test_a_slow_network_is_given_up_in_time_and_what_was_not_measured_is_reported() -> None:
    network = Network(40, slow_s=5.0)
    findings = network.examine()
    assert MEASURE_S + GRACE_S < network.now <= MEASURE_S + GRACE_S + 5
    (warning,) = of_level(findings, Level.WARNING)
    left = len(list(combinations(range(40), 2))) - len(network.asked)
    assert f"{left} of 780 pairs were not measured" in warning.message
    assert "stall" not in warning.message
    assert set(warning.nodes) == {f"n{number}" for number in range(40)}
    assert len(of_level(findings, Level.OK)) == 2 * len(network.asked)


def test_halves_that_do_not_reach_each_other_are_reported_in_time() -> None:
    """Every link between two halves stalls: no doubt about the links, some about the nodes."""
    halves = frozenset((f"n{a}", f"n{b}") for a in range(10) for b in range(10, 20))
    network = Network(20, cut=halves)
    findings = network.examine()
    assert network.now <= MEASURE_S + GRACE_S + CALL_S + 1
    assert {finding.nodes for finding in of_level(findings, Level.ERROR)} <= halves
    assert of_level(findings, Level.WARNING)


@pytest.mark.parametrize("count", [1, 2])
def test_a_lonely_node_or_a_couple_is_examined_too(count: int) -> None:
    assert len(Network(count).examine()) == 2 * (count - 1)
    assert len(Network(count, bad=frozenset({"n0"})).examine()) == count - 1
