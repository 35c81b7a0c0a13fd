import json
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from tests.clock import ManualClock

from rolecall.runtime import reporter
from rolecall.runtime.reporter import Reporter
from rolecall.spec.errors import NonFiniteLoss
from rolecall.spec.report import ProgressLine, TimeSpent

BEGIN = datetime(2026, 7, 1, tzinfo=UTC)


@pytest.fixture
def report(tmp_path: Path) -> Iterator[Reporter]:
    with closing(Reporter(tmp_path / "progress")) as reporter:
        yield reporter


def lines(path: Path) -> list[ProgressLine]:
    return [ProgressLine.model_validate(json.loads(line)) for line in path.read_text().splitlines()]


def test_the_first_step_is_reported_apart_and_later_ones_are_throttled(tmp_path: Path) -> None:
    clock = ManualClock()
    with closing(Reporter(tmp_path / "progress", clock, lambda: BEGIN + timedelta(seconds=clock.now))) as report:
        for step in range(1, 1001):
            report(step, loss=torch.tensor(0.5), samples=8, steps=1000, epoch=1)
            clock.now += 0.0625
    written = lines(tmp_path / "progress")
    assert [line.kind for line in written] == ["first_step"] + ["step"] * 125
    assert [line.step for line in written] == [*range(1, 1001, 8), 1000]
    assert written[0].metrics == {"loss": 0.5}
    assert written[-2].samples_per_s == 8 / 0.0625
    assert {later.at - earlier.at for earlier, later in pairwise(written[:-1])} == {timedelta(seconds=0.5)}


def test_the_last_step_is_reported_before_the_result(tmp_path: Path, report: Reporter) -> None:
    for step in range(1, 6):
        report(step, loss=step / 10)
    report.result({"test_loss": 0.25})
    written = [(line.kind, line.step, line.metrics) for line in lines(tmp_path / "progress")]
    assert written[-2:] == [("step", 5, {"loss": 0.5}), ("result", None, {"test_loss": 0.25})]


def test_the_time_until_the_end_is_reported_after_the_last_step(tmp_path: Path, report: Reporter) -> None:
    report.finished(4, TimeSpent(finish=1.0))  # Without a step, the master counts the time as that of the start.
    assert not lines(tmp_path / "progress")
    for step in range(1, 6):
        report(step, loss=step / 10)
    report.finished(5, TimeSpent(steps=2.0, finish=1.0))
    last, end = lines(tmp_path / "progress")[-2:]
    assert (last.kind, last.step, last.spent) == ("step", 5, None)
    assert (end.kind, end.step, end.metrics, end.spent) == ("step", 5, {}, TimeSpent(steps=2.0, finish=1.0))


def test_a_training_that_ends_early_has_no_further_steps(tmp_path: Path, report: Reporter) -> None:
    for step in range(1, 6):
        report(step, loss=0.5, steps=100)
    report.finishing(5, "exporting the model")
    steps = [line for line in lines(tmp_path / "progress") if line.kind == "step"]
    assert [(line.step, line.steps) for line in steps] == [(5, 100), (5, 5)]


def test_the_first_step_has_no_speed(tmp_path: Path) -> None:
    """Its duration isn't known: a speed of 0 would be the lowest point of every curve."""
    clock = ManualClock()

    def ticking() -> float:
        clock.now += 1e-3
        return clock.now

    with closing(Reporter(tmp_path / "progress", ticking)) as report:
        report(1, loss=1.0, samples=8)
        clock.now += 0.5
        report(2, loss=1.0, samples=8)
    first, second = lines(tmp_path / "progress")
    assert first.samples_per_s is None
    assert second.samples_per_s == pytest.approx(8 / 0.5, rel=0.02)


def test_steps_that_are_longer_than_the_window_have_a_speed(tmp_path: Path) -> None:
    clock = ManualClock()
    with closing(Reporter(tmp_path / "progress", clock)) as report:
        for step in range(1, 4):
            report(step, loss=1.0, samples=6, steps=10)
            clock.now += 12.0
    assert [line.samples_per_s for line in lines(tmp_path / "progress")] == [None, 0.5, 0.5]
    assert lines(tmp_path / "progress")[-1].seconds_left == 84.0


def test_metrics_may_be_tensors(tmp_path: Path, report: Reporter) -> None:
    report(1, loss=1.0, metrics={"rate": 0.5, "part": torch.tensor(0.25)})
    assert lines(tmp_path / "progress")[0].metrics == {"loss": 1.0, "rate": 0.5, "part": 0.25}


def test_a_step_without_samples_of_this_worker_has_no_loss(tmp_path: Path, report: Reporter) -> None:
    report(1, loss=None, metrics={"rate": 0.5})
    assert [(line.step, line.metrics) for line in lines(tmp_path / "progress")] == [(1, {"rate": 0.5})]


def test_the_last_step_is_reported_before_the_end(tmp_path: Path) -> None:
    with closing(Reporter(tmp_path / "progress")) as report:
        report(1, loss=1.0)
        report(2, loss=0.5)
    assert [line.step for line in lines(tmp_path / "progress")] == [1, 2]


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), torch.tensor(float("nan"))])
def test_a_loss_that_is_no_number_fails_the_job_for_good(report: Reporter, loss: float | torch.Tensor) -> None:
    report(1, loss=1.0)
    with pytest.raises(NonFiniteLoss, match="at step 2") as caught:
        report(2, loss=loss)
    assert not caught.value.retryable


def test_events_results_and_scores_are_never_throttled(tmp_path: Path, report: Reporter) -> None:
    report(1, loss=1.0)
    report.event("hello")
    report.evaluated(1, 1, {"validation_auc": 0.75})
    report.result({"test_auc": 0.5, "wall_s": 2.0})
    kinds = [(line.kind, line.metrics) for line in lines(tmp_path / "progress")[1:]]
    assert kinds == [("event", {}), ("step", {"validation_auc": 0.75}), ("result", {"test_auc": 0.5, "wall_s": 2.0})]


def test_a_long_job_writes_a_bounded_number_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps come more rarely, the more is written; in the end, the result alone has room."""
    monkeypatch.setattr(reporter, "PROGRESS_BYTES", 64 * 1024)
    monkeypatch.setattr(reporter, "_WRITE_EVERY_S", 0.0)
    with closing(Reporter(tmp_path / "progress")) as report:
        for step in range(1, 3001):
            report(step, loss=1.0)
            report.evaluated(step, None, {"accuracy": 0.5})
            report.event("an event")
        report.result({"accuracy": 0.5})
    written = lines(tmp_path / "progress")
    assert written[-1].kind == "result"
    assert (tmp_path / "progress").stat().st_size < 64 * 1024


def test_the_more_is_written_the_fewer_steps_are_reported() -> None:
    """At 0.5 s each a line of 400 bytes takes 5.8 hours for 16 MiB; a job may take months."""
    written, seconds = 0, 0.0
    while seconds < 180 * 86_400:
        written, seconds = written + 400, seconds + reporter.interval_s(written)
    assert written < reporter.PROGRESS_BYTES * 7 // 8
    assert reporter.interval_s(0) == 0.5
