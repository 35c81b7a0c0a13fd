# pyright: standard
"""The pages' texts of numbers, times, nodes and jobs."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rolecall.master.web import format as texts
from rolecall.master.web.view import (
    Figures,
    cluster_view,
    declaration,
    declared_metrics,
    figures,
    main_value,
    mean_goodput,
    readable,
    run_time_s,
    seat_labels,
)
from rolecall.spec.api import MetricDocument, WorkloadDocument
from rolecall.spec.comparison import Row, differences
from rolecall.spec.job import AttemptDocument, JobDocument, Progress
from rolecall.spec.node import NodeDocument, Occupant
from rolecall.spec.resources import Resources
from rolecall.spec.role import Role
from rolecall.spec.state import JobState, WorkerState
from rolecall.workloads.catalogue import load

from .harness import TOY, make_node

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def job(**values: Any) -> JobDocument:
    plain: dict[str, Any] = {
        "priority": 0,
        "max_restarts": 0,
        "deadline_s": None,
        "state": JobState.QUEUED,
        "attempts": [],
    }
    times = {"created_at": NOW, "started_at": None, "ended_at": None, "reason": None, "waiting_for": None}
    base: dict[str, Any] = {"id": "a", "name": "", "workload": "toy", "roles": {}, "params": {}, "result": None}
    base["progress"] = Progress()
    return JobDocument(**(base | plain | times | values))


def test_numbers_and_times_are_short() -> None:
    assert [texts.duration(one) for one in (None, -1, 0.4, 59.6, 60, 3725, 90_000)] == [
        "", "0 s", "0 s", "1 min", "1 min", "1 h 2 min", "1 d 1 h",
    ]  # fmt: skip
    assert texts.ago(NOW - timedelta(seconds=5), NOW) == "5 s ago"
    assert texts.ago(NOW - timedelta(hours=1, minutes=59), NOW) == "1 h ago"
    assert [texts.percent(one) for one in (0.0, 0.874, 1.0)] == ["0 %", "87 %", "100 %"]
    assert [texts.number(one) for one in (12345, 0.000012345, 1234.5, 3.2456e24, True, "x")] == [
        "12,345",
        "1.234e-05",
        "1,234",
        "3.246e+24",
        "True",
        "x",
    ]
    assert [texts.measure(9.6134, unit) for unit in ("seconds", "bytes", "nats", "", None)] == [
        "9.613 s",
        "10 B",
        "9.613",
        "9.613",
        "9.613",
    ]
    assert [texts.size(one) for one in (0, 1023, 1024, 3 << 20, 5 << 50)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "3.0 MiB",
        "5120.0 TiB",
    ]


@pytest.mark.parametrize(
    ("detail", "shown"),
    [
        ("there is no job 'x'; `rolecall jobs` lists them", "There is no job 'x'."),
        (
            "there is nothing at /a/; did you mean /a? GET /docs lists the routes",
            "There is nothing at /a/; did you mean /a?",
        ),
        ("job x is running; cancel it first, or add --force (?force=true)", "Job x is running."),
        ("'lost' is not valid; valid: queued, failed", "'lost' is not valid; valid: queued, failed."),
        ("The master answers again soon.", "The master answers again soon."),
    ],
)
def test_an_error_on_a_page_says_what_helps_in_a_browser(detail: str, shown: str) -> None:
    assert texts.for_browser(detail) == shown


@pytest.mark.parametrize(
    ("field", "message", "legal", "shown"),
    [
        (
            "jobs",
            "there is no query parameter 'jobs'; did you mean 'job'?",
            "job",
            "There is no query parameter 'jobs'; did you mean 'job'? Valid: job.",
        ),
        ("id", "there is no query parameter 'id'", "job", "There is no query parameter 'id'; valid: job."),
        (
            "state",
            "'lost' is not valid",
            "queued, failed",
            "Parameter 'state': 'lost' is not valid; valid: queued, failed.",
        ),
        ("state", "it is missing", None, "Parameter 'state': it is missing."),
        (
            "…",
            "3 more problems are not listed; fix these first",
            None,
            "3 more problems are not listed; fix these first.",
        ),
    ],
)
def test_the_error_of_a_parameter_is_a_sentence(field: str, message: str, legal: str | None, shown: str) -> None:
    error = {"field": field, "message": message} | ({} if legal is None else {"legal": legal})
    assert texts.for_browser(texts.about_parameter(error)) == shown


def test_a_role_s_slots_are_those_of_live_nodes() -> None:
    worker = Occupant(job=None, role=Role.TRAINER, role_rank=0, state=WorkerState.RUNNING)
    nodes = [
        NodeDocument(spec=make_node("t0", Role.TRAINER), alive=True, heartbeat_age_s=0, workers=(worker,)),
        NodeDocument(spec=make_node("t1", Role.TRAINER), alive=False, heartbeat_age_s=99, workers=(worker,)),
        NodeDocument(spec=make_node("p0", Role.PARAMETER_SERVER), alive=True, heartbeat_age_s=0),
    ]
    views = cluster_view(nodes)
    assert [(one.role, one.alive, one.slots, one.used) for one in views] == [
        (Role.PARAMETER_SERVER, 1, 2, 0),
        (Role.TRAINER, 1, 2, 1),
    ]


def test_a_seat_has_the_short_name_of_its_job_or_its_id() -> None:
    jobs = [
        job(id="toy-1", name="n" * 30, state=JobState.RUNNING),
        job(id="toy-2", name="", state=JobState.RUNNING),
        job(id="toy-3", name="same", state=JobState.RUNNING),
        job(id="toy-4", name="same", state=JobState.RUNNING),
        job(id="toy-5", name="once", state=JobState.RUNNING),
        job(id="toy-6", name="once", state=JobState.SUCCEEDED),
    ]
    labels = seat_labels([*jobs, jobs[0]])
    assert labels == {"toy-1": f"{'n' * 23}…", "toy-5": "once"} | {id_: id_ for id_ in ("toy-2", "toy-3", "toy-4")}


def test_only_fields_that_differ_are_compared() -> None:
    jobs = [
        job(params={"lr": 0.1, "data": {"train": "a", "test": "t"}}),
        job(
            params={"lr": 0.2, "data": {"train": "a"}, "extra": []},
            resources={Role.TRAINER: Resources(threads=4)},
            result={"auc": 0.9},
        ),
    ]
    rows = differences(jobs, {})
    assert Row("params.lr", ["0.1", "0.2"]) in rows
    assert Row("params.data.test", ["t", None]) in rows
    assert Row("result.auc", [None, "0.9"]) in rows
    assert Row("resources.trainer.threads", [None, "4"]) in rows
    assert not any(row.name in {"params.data.train", "workload"} for row in rows)
    assert differences(jobs[:1], {}) == []


def test_the_goodput_of_the_cluster_is_weighted_by_the_slots_of_running_jobs() -> None:
    def running(goodput: float | None, trainers: int, state: JobState = JobState.RUNNING) -> JobDocument:
        return job(roles={Role.TRAINER: trainers, Role.STAGE: 1}, goodput=goodput, state=state)

    assert mean_goodput([]) is None
    assert mean_goodput([running(None, 1), running(0.5, 1, JobState.SUCCEEDED)]) is None
    jobs = [running(0.5, 2), running(0.9, 0), running(None, 9), running(1.0, 1, JobState.PAUSED)]
    assert mean_goodput(jobs) == pytest.approx((3 * 0.5 + 0.9) / 4)


def test_a_job_runs_while_it_has_workers_and_not_while_it_waits_or_is_paused() -> None:
    def attempt(number: int, from_s: float, to_s: float | None) -> AttemptDocument:
        return AttemptDocument(
            number=number, state=JobState.RUNNING, cause=None, stop=None, workers=[],
            started_at=NOW + timedelta(seconds=from_s),
            ended_at=None if to_s is None else NOW + timedelta(seconds=to_s),
        )  # fmt: skip

    assert run_time_s([], NOW) == 0
    attempts = [attempt(1, 0, 10), attempt(2, 100, None)]
    assert run_time_s(attempts, NOW + timedelta(seconds=105)) == 15


def test_members_of_an_indexed_metric_are_a_family_in_the_order_of_the_index() -> None:
    values = {"auc": 0.9, "trainer_10_loss": 3.0, "trainer_9_loss": 2, "sample": "It is a truth"}
    families = {"trainer_{index}_loss": {"trainer_9_loss": 2, "trainer_10_loss": 3.0}}
    declared = [MetricDocument.model_validate(one, from_attributes=True) for one in TOY.metrics]
    found = figures(values, declared)
    assert found == Figures({"auc": 0.9}, families)
    assert [*found.families["trainer_{index}_loss"]] == ["trainer_9_loss", "trainer_10_loss"]
    assert figures({"trainer_0_loss": 2}, declared) == Figures({"trainer_0_loss": 2})


def test_a_null_of_a_result_is_a_figure_that_is_not_finite() -> None:
    declared = [MetricDocument.model_validate(one, from_attributes=True) for one in TOY.metrics]
    values = {"trainer_0_loss": None, "trainer_1_loss": 2.0, "trainer_2_loss": 3.0}
    family = {"trainer_1_loss": 2.0, "trainer_2_loss": 3.0}
    assert figures(values, declared) == Figures({"trainer_0_loss": None}, {"trainer_{index}_loss": family})
    assert [texts.measure(None, unit) for unit in ("bytes", "seconds", None)] == ["not finite"] * 3


def test_the_declaration_of_a_reported_name_is_found_also_by_its_index() -> None:
    declared = [MetricDocument.model_validate(one, from_attributes=True) for one in TOY.metrics]
    toy = WorkloadDocument(name="toy", summary="", roles={}, params={}, metrics=declared, example=None)
    metrics = declared_metrics([toy])
    assert declaration(metrics, "trainer_3_loss")["name"] == "trainer_{index}_loss"
    assert declaration(metrics, "trainer_{index}_loss")["name"] == "trainer_{index}_loss"
    assert declaration(metrics, "unknown") == {"name": "unknown", "help": "", "unit": "", "direction": None}


def test_the_main_value_of_a_job_is_its_first_score_or_its_loss() -> None:
    declared = load("reinforce").metrics
    assert main_value(Progress(), declared) is None
    assert main_value(Progress(loss=0.5), declared) == ("loss", 0.5, None)
    trained = Progress(loss=0.5, metrics={"episode_return": 20.0})
    assert main_value(trained, declared) == ("episode_return", 20.0, "higher")
    evaluated = Progress(loss=0.5, metrics={"episode_return": 20.0, "evaluation_return": 30.0})
    assert main_value(evaluated, declared) == ("evaluation_return", 30.0, "higher")
    assert main_value(evaluated, ()) == ("loss", 0.5, None)


def test_declared_metrics_are_sorted_by_importance() -> None:
    """Evaluated metrics and those of training in turn, so that the first charts show both."""
    declared = [MetricDocument.model_validate(one, from_attributes=True) for one in load("reinforce").metrics]
    document = WorkloadDocument(name="reinforce", summary="", roles={}, params={}, metrics=declared, example=None)
    names = [one["name"] for one in declared_metrics([document])]
    assert names[:3] == ["evaluation_return", "episode_return", "evaluation_return_min"]
    assert sorted(names) == sorted({name for one in declared for name in one.reported.values()})


def test_results_are_short_and_parameters_exact() -> None:
    result = readable(Row("result.test_auc", ["0.92300001", None, '"0.5 or so"', "null", "12345.6", "not JSON"]))
    assert result.values == ["0.9230", None, '"0.5 or so"', "not finite", "12,346", "not JSON"]
    params = Row("params.optimizer.lr", ["0.00123456789", None])
    assert readable(params) == params
