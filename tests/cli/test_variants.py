"""The jobs of a sweep, and what is shown of their results."""

import re
from datetime import UTC, datetime
from statistics import stdev
from typing import Any

import pytest

from rolecall.cli.exits import CommandError, Exit
from rolecall.cli.variants import Variant, best, chart, check_metric, direction, metrics, scores, variants
from rolecall.client.chart import Point, svg
from rolecall.spec.api import MetricDocument, WorkloadDocument
from rolecall.spec.job import JobDocument
from rolecall.spec.metric import EVALUATED, Metric

JOB = {"workload": "w", "params": {"lr": 0.1}}
NOW = datetime(2026, 1, 1, tzinfo=UTC)
DECLARED = [
    MetricDocument.model_validate(one, from_attributes=True)
    for one in (
        Metric("loss", "Loss.", direction="lower", splits=EVALUATED),
        Metric("auc", "Area.", direction="higher", splits=EVALUATED),
        Metric("observer_{index}_return", "Return.", direction="higher"),
        Metric("steps", "Steps."),
    )
]


def run(state: str = "succeeded", progress: dict[str, Any] | None = None, /, **result: Any) -> JobDocument:
    """A job that has ended."""
    empty: dict[str, Any] = {
        "name": "",
        "params": {},
        "roles": {},
        "priority": 0,
        "max_restarts": 0,
        "deadline_s": None,
        "attempts": [],
    }
    times = {"created_at": NOW, "started_at": NOW, "ended_at": NOW}
    said = {"state": state, "reason": None, "waiting_for": None, "progress": progress or {}, "result": result or None}
    return JobDocument.model_validate({"id": "w-1", "workload": "w", **empty, **times, **said})


def measured(settings: list[tuple[str, tuple[Any, ...]]], *results: list[JobDocument]) -> list[Variant]:
    planned = variants(JOB, settings)
    for variant, runs in zip(planned, results, strict=True):
        variant.runs += runs
    return planned


def test_a_null_of_a_result_is_a_score_that_is_not_finite() -> None:
    job = run("succeeded", {"metrics": {"test_loss": 2.0, "epoch_s": 1.0}}, test_loss=None)
    assert scores(job) == {"epoch_s": 1.0, "test_loss": None}


def test_every_combination_is_a_job() -> None:
    planned = variants(JOB, [("params.lr", (0.1, 0.2)), ("roles.stage", (2, 3))])
    assert [variant.job["params"]["lr"] for variant in planned] == [0.1, 0.1, 0.2, 0.2]
    assert [variant.job["roles"]["stage"] for variant in planned] == [2, 3, 2, 3]
    assert [variant.title for variant in planned][-1] == "lr=0.2, roles.stage=3"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ([("a", (1,)), ("a", (2,))], "--set a is given twice"),
        ([("a", (1, 2, 1))], "--set a: 1 is given twice; for several runs, use --repeat"),
        ([("a", tuple(range(100))), ("b", tuple(range(100)))], "10000 combinations of values; at most 1000"),
    ],
)
def test_an_invalid_sweep_is_refused(settings: list[tuple[str, tuple[Any, ...]]], said: str) -> None:
    with pytest.raises(CommandError, match=said) as caught:
        variants(JOB, settings)
    assert caught.value.code is Exit.USAGE


def test_equal_numbers_of_different_types_are_different_values() -> None:
    assert [variant.title for variant in variants(JOB, [("a", (1, True, "x", 1.0))])] == [
        "a=1",
        "a=true",
        "a=x",
        "a=1.0",
    ]


def test_metrics_are_the_numbers_of_the_result_and_of_the_progress() -> None:
    progress = {"loss": 0.5, "metrics": {"validation_auc": 0.8, "test_auc": 0.1}}
    found = metrics(run("succeeded", progress, test_auc=0.9, steps=3, broken=None, findings=[{}], flag=True))
    assert found == {"loss": 0.5, "validation_auc": 0.8, "test_auc": 0.9, "steps": 3.0}


def test_only_runs_that_succeeded_count() -> None:
    (variant,) = measured([("a", (1,))], [run(x=1.0), run("failed", x=100.0), run(x=4.0), run()])
    spread = variant.spread("x")
    assert spread
    assert (spread.mean, spread.deviation, spread.runs) == (2.5, stdev([1.0, 4.0]), 2)
    assert variant.spread("y") is None
    (single,) = measured([("a", (1,))], [run(x=1.0)])
    assert single.spread("x").deviation is None  # type: ignore[union-attr]


def test_a_variant_with_a_diverged_run_has_no_mean_and_is_not_the_best() -> None:
    done = measured([("a", (1, 2, 3))], [run(x=1.0), run(x=None)], [run(x=2.0)], [run(x=3.0)])
    assert done[0].spread("x") is None
    assert best(done, "x", "lower") == [1]


def test_the_direction_of_a_metric_is_the_one_that_the_workloads_declare() -> None:
    names = ("test_loss", "validation_auc", "observer_3_return", "steps", "unknown")
    assert [direction(DECLARED, name) for name in names] == ["lower", "higher", "higher", None, None]
    other = MetricDocument.model_validate(
        Metric("loss", "Loss.", direction="higher", splits=EVALUATED), from_attributes=True
    )
    assert direction([*DECLARED, other], "test_loss") is None, "two workloads declare different ones"


def test_speeds_have_a_direction_unless_the_workloads_declare_another() -> None:
    speeds = ("samples_per_s", "start_s")
    undirected = MetricDocument.model_validate(Metric("samples_per_s", "Speed."), from_attributes=True)
    assert [direction([undirected], name) for name in speeds] == ["higher", "lower"]
    own = MetricDocument.model_validate(Metric("samples_per_s", "Speed.", direction="lower"), from_attributes=True)
    assert direction([own], "samples_per_s") == "lower"
    assert direction([own, undirected], "samples_per_s") is None


def workload(metrics: list[MetricDocument]) -> WorkloadDocument:
    return WorkloadDocument(name="w", summary="", roles={}, params={}, metrics=metrics)


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("test_acu", "--metric test_acu: w declares no metric 'test_acu'; did you mean 'test_auc'? valid: observer_"),
        ("zzz", "'zzz'; valid: observer_{index}_return, start_s, steps, test_auc, test_loss, validation_auc, valid"),
        ("observer_x_return", "did you mean 'observer_{index}_return'?"),
    ],
)
def test_a_metric_that_the_workload_does_not_declare_is_refused(metric: str, said: str) -> None:
    with pytest.raises(CommandError) as caught:
        check_metric(metric, workload(DECLARED))
    assert caught.value.code is Exit.USAGE
    assert said in str(caught.value)


def test_a_metric_that_a_job_can_have_is_accepted() -> None:
    for metric in ("test_auc", "observer_3_return", "start_s"):
        check_metric(metric, workload(DECLARED))
    check_metric("anything", workload([]))


def test_the_best_variants_have_the_best_mean_of_those_with_a_value() -> None:
    runs: tuple[list[JobDocument], ...] = (
        [run(x=1.0), run(x=5.0)],
        [run(x=2.0)],
        [run("failed", x=0.0)],
        [run(x=3.0)],
        [],
    )
    done = measured([("a", (1, 2, 3, 4, 5))], *(list(one) for one in runs))
    assert best(done, "x", "lower") == [1]
    assert best(done, "x", "higher") == [0, 3], "means that are equal"
    assert best(done[1:3], "x", "lower") == [], "there is nothing to compare"


def test_the_chart_has_the_first_setting_as_its_axis_and_the_others_as_series() -> None:
    settings = [("params.splits", (1, 2, 4)), ("params.schedule", ("a", "b"))]
    done = measured(settings, *([run(x_s=float(n)), run(x_s=float(n + 2))] for n in range(4)), [run("failed")] * 2, [])
    found = chart(done, settings, "x_s")
    assert found
    assert (found.title, found.x_title, found.y_title) == ("w", "splits", "x (s)")
    assert found.x_values == (1, 2), "a value without a result is left out"
    assert [one.label for one in found.series] == ["schedule=a", "schedule=b"]
    deviation = stdev([0.0, 2.0])
    assert found.series[1].points == (Point(0, 2.0, deviation), Point(1, 4.0, deviation))
    assert found.note == "mean of 2 runs; bars: ± one standard deviation"
    assert chart(done, settings, "unknown") is None


@pytest.mark.parametrize(
    ("metric", "title"),
    [("samples_per_s", "samples/s"), ("wall_s", "wall (s)"), ("test_loss", "test loss"), ("s", "s")],
)
def test_the_axis_has_the_metrics_unit(metric: str, title: str) -> None:
    done = measured([("a", ("x",))], [run(**{metric: 1.0})])
    found = chart(done, [("a", ("x",))], metric)
    assert found
    assert found.y_title == title
    assert found.x_values == ("x",)
    assert found.note == "one run each"


@pytest.mark.parametrize("first", [0.0, 5e-324, -1e-310, 1.0, 1e16, 1e300, -1e300, 1.7e308, 10**400])
@pytest.mark.parametrize("second", [0.0, 1.0000000000000002, 1e16 + 2, 1e300, -1.7e308, -(10**400)])
@pytest.mark.parametrize("values", [(1, 2), (10**400, 5e-324), (float("inf"), 1)])
def test_no_number_ends_a_sweep(first: float, second: float, values: tuple[float, ...]) -> None:
    settings = [("lr", values)]
    done = measured(settings, [run(m=first), run(m=second)], [run(m=second), run(m=second)])
    if (found := chart(done, settings, "m")) is not None:
        drawn = svg(found)
        assert "nan" not in drawn
        assert not re.search(r"\binf\b", drawn.replace("Infinity", ""))
