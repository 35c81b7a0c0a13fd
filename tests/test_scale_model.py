# pyright: reportPrivateUsage=false
"""The model that predicts larger clusters from the costs of small runs."""

from dataclasses import replace
from itertools import pairwise

import pytest
from benchmarks.contest import Run
from benchmarks.scale import (
    HELD_OUT,
    OBSERVERS,
    STAGES,
    Measured,
    _contenders,
    compare,
    fitted,
    on_this_machine,
    report,
)
from benchmarks.scale_model import (
    GIGABIT,
    EmbeddingCosts,
    PipelineCosts,
    ReinforceCosts,
    best_embedding,
    best_pipeline,
    embedding,
    fit,
    pipeline,
    reinforce,
)

ROWS = EmbeddingCosts(1000, 0.05, 0.001, 0.01, 0.001, 2e6, 1e6)
PIPELINE = PipelineCosts(32, 8, 2.0, 0.01, 5e5, 3e7)
ROLLOUTS = ReinforceCosts(1024, 0.02, 0.004, 0.01, 3e4)


def test_costs_are_fitted_without_negative_ones() -> None:
    rows = [(1, 1, 1), (1, 2, 4), (1, 3, 9), (1, 4, 16)]
    assert fit(rows, [2 + 3 * x + 0.5 * x * x for x in (1, 2, 3, 4)]) == pytest.approx([2, 3, 0.5])
    assert fit([(1, 1), (1, 2), (1, 3)], [3, 2, 1]) == pytest.approx([2, 0])


def test_a_step_is_the_sum_of_its_phases_or_the_work_of_the_shared_cores() -> None:
    alone = embedding(ROWS, servers=1, trainers=1)
    assert alone.rate == pytest.approx(1000 / (0.05 + 0.001 + 0.01 + 0.001))
    assert alone.limit == "trainer CPU"
    shared = embedding(ROWS, servers=1, trainers=8, cores=2)
    assert shared.rate == pytest.approx(8000 / (8 * (0.051 + 0.011) / 2))
    assert embedding(ROWS, servers=1, trainers=8, cores=64).rate == embedding(ROWS, servers=1, trainers=8).rate


def test_the_resource_that_saturates_first() -> None:
    many = embedding(ROWS, servers=1, trainers=100)
    assert many.limit == "server CPU"
    assert embedding(ROWS, servers=1, trainers=100, link=0.1 * GIGABIT).limit == "server link"
    assert reinforce(ROLLOUTS, observers=2).limit == "observer CPU"
    assert reinforce(ROLLOUTS, observers=1000).limit == "agent CPU"
    assert reinforce(ROLLOUTS, observers=1000).rate == pytest.approx(1024 / 0.004, rel=0.02)


def test_a_pipelines_bubble_is_that_of_its_schedule() -> None:
    found = pipeline(PIPELINE, stages=4)
    assert found.seconds["bubble"] / sum(found.seconds.values()) == pytest.approx(3 / (8 + 3))


def test_faster_links_and_more_nodes_are_never_slower() -> None:
    for nodes in (10, 100):
        rates = [best_embedding(ROWS, nodes, speed * GIGABIT).rate for speed in (1, 10, 100)]
        rates += [best_embedding(ROWS, 2 * nodes, 100 * GIGABIT).rate]
        assert all(one <= other for one, other in pairwise(rates))
        rates = [best_pipeline(PIPELINE, nodes, speed * GIGABIT, 8).rate for speed in (1, 10, 100)]
        assert all(one <= other for one, other in pairwise(rates))


@pytest.fixture
def runs() -> list[Measured]:
    """Figures of runs, as if every worker took exactly its costs."""
    found = [
        _run("embedding-ddp", (servers, trainers), {"parameter-server": 11.0 * trainers, "trainer": 51.0 * trainers})
        for servers, trainers in ((1, 1), (1, 4), (1, 8))
    ]
    found += [_run("transformer-pipeline", (stages, 1), {"stage": 2000.0 + 10 * (stages - 1)}) for stages in STAGES]
    found += [
        _run("reinforce", (1, count), {"trainer": 10.0 + 4 * count, "observer": 20.0 * count}) for count in OBSERVERS
    ]
    costs = fitted(found)
    return [replace(one, run=replace(one.run, rate=on_this_machine(costs, one).rate)) for one in found]


def test_runs_that_follow_the_model_are_predicted(runs: list[Measured]) -> None:
    costs = fitted(runs)
    assert costs.reinforce.agent_s == pytest.approx(0.004)
    assert costs.pipeline.compute_s == pytest.approx(2.0)
    assert on_this_machine(costs, runs[0]).rate == pytest.approx(1024 / 0.062)
    # The largest gangs are not in the fit.
    shared_s = 8 * 0.062 / 2
    assert on_this_machine(costs, runs[2]).rate == pytest.approx(8 * 1024 / shared_s)
    table = report(runs, costs)
    assert "| `embedding-ddp` | 1 + 1 |" in table
    assert "| `transformer-pipeline` | +0% (1 × 2) | +0% (1 × 4) |" in table
    assert table.count("| 1,000 |") == 3


def test_the_largest_gangs_are_held_out(runs: list[Measured]) -> None:
    """The model cannot learn from them that it is wrong."""
    workloads = {one.workload for one in runs}
    assert {one.workload for one in runs if one.is_held_out} == workloads
    slower = [
        replace(one, run=replace(one.run, rate=one.run.rate / 2, cpu_ms={"trainer-0": 1e6})) if one.is_held_out else one
        for one in runs
    ]
    costs = fitted(slower)
    assert costs == fitted(runs)
    compared = compare(slower, costs)
    assert [one.error for one in compared] == pytest.approx([1.0 if one.is_held_out else 0.0 for one in compared])
    table = report(slower, costs)
    assert "| `reinforce` | 1 + 8 | " in table
    assert table.count("| +100% | yes |") == len(workloads)
    assert "| `embedding-ddp` | +0% (1 + 1) | +100% (1 + 8) |" in table


def test_the_gangs_that_are_held_out_are_run() -> None:
    assert {(workload, counts) for workload, counts, _ in _contenders()} > HELD_OUT


def _run(workload: str, counts: tuple[int, int], cpu_ms: dict[str, float]) -> Measured:
    return Measured(workload, counts, Run(1.0, 1.0, {f"{role}-0": value for role, value in cpu_ms.items()}))
