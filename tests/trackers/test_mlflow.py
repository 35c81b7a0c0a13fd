# pyright: standard
"""Jobs as MLflow's runs, read back from a real store with MLflow's own client."""

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from rolecall.spec.api import Checkpoint, Series
from rolecall.spec.errors import MissingPackage, TrackerError
from rolecall.spec.plan import CheckpointManifest
from rolecall.spec.role import Role
from rolecall.spec.state import JobState
from rolecall.trackers import mlflow
from rolecall.trackers.mlflow import TrackedRuns

from .documents import START, job

pytestmark = pytest.mark.slow

START_MS = round(START.timestamp() * 1000)


def series(*steps: int, role_rank: int = 0, attempt: int = 1) -> Series:
    at = {step: (START + timedelta(minutes=attempt, seconds=step)).isoformat() for step in steps}
    points = [{"step": step, "at": at[step], "epoch": 1, "loss": step / 2, "note": "text"} for step in steps]
    points[-1]["validation_auc"] = 0.75
    return Series(attempt=attempt, rank=1 + role_rank, role=Role.TRAINER, role_rank=role_rank, points=points)


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


def stored(uri: str, id: str) -> Run:
    """The only run of a job."""
    client = MlflowClient(uri)
    (experiment,) = client.search_experiments(filter_string="name = 'mine'")
    (run,) = client.search_runs([experiment.experiment_id], f"tags.`rolecall.job` = '{id}'")
    return run


def points(uri: str, run: Run, name: str) -> list[tuple[int, float, int]]:
    history = MlflowClient(uri).get_metric_history(run.info.run_id, name)
    return [(point.step, point.value, point.timestamp - START_MS) for point in history]


def test_a_job_is_one_run_that_later_calls_continue(uri: str) -> None:
    params = {"epochs": 3, "text": {"train": "a.txt", "limit": None}, "hidden": [16, 8], "empty": ""}
    running = job("rnn-lm-1", name="first", labels={"team": "vision"}, params=params, owner="alice")
    first = TrackedRuns(uri, "mine")
    first.write(running, [series(1, 2), series(1, role_rank=1)], [])
    assert stored(uri, "rnn-lm-1").info.status == "RUNNING"

    result = {"test_auc": 0.5, "findings": [{"level": "warning"}]}
    ended = running.model_copy(
        update={"state": JobState.SUCCEEDED, "ended_at": START + timedelta(hours=1), "result": result}
    )
    manifest = CheckpointManifest(attempt=1, step=2, parts=(), position={})
    second = TrackedRuns(uri, "mine")
    for _ in range(2):
        second.write(
            ended,
            [series(1, 2, 3), series(1, role_rank=1), series(3, attempt=2)],
            [Checkpoint(manifest=manifest, created_at=START)],
        )
    run = stored(uri, "rnn-lm-1")
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    assert (run.info.start_time, run.info.end_time) == (START_MS, START_MS + 3_600_000)
    assert run.data.params == {
        "roles.trainer": "2",
        "epochs": "3",
        "text.train": "a.txt",
        "text.limit": "null",
        "hidden": "[16, 8]",
        "empty": "",
    }
    own = {name: value for name, value in run.data.tags.items() if name not in ("mlflow.runName", "rolecall.attempts")}
    assert own == {
        "mlflow.user": "alice",
        "label.team": "vision",
        "rolecall.job": "rnn-lm-1",
        "rolecall.workload": "rnn-lm",
        "rolecall.state": "succeeded",
        "rolecall.reason": "",
        "rolecall.checkpoints": "2",
        "rolecall.result.findings": '[{"level": "warning"}]',
    }
    assert set(run.data.metrics) == {
        "loss", "validation_auc", "trainer-1/loss", "trainer-1/validation_auc", "result.test_auc"
    }  # fmt: skip
    minute = 60_000
    first_attempt = [(step, step / 2, minute + 1000 * step) for step in (1, 2, 3)]
    assert points(uri, run, "loss") == [*first_attempt, (3, 1.5, 2 * minute + 3000)]
    assert points(uri, run, "result.test_auc") == [(2, 0.5, 60 * minute)]
    assert (first.count, second.count) == (5, 5)


@pytest.mark.parametrize(
    ("state", "status"),
    [("queued", "SCHEDULED"), ("failed", "FAILED"), ("cancelled", "KILLED"), ("paused", "SCHEDULED")],
)
def test_the_state_of_a_job_is_the_status_of_its_run(uri: str, state: str, status: str) -> None:
    TrackedRuns(uri, "mine").write(job(f"in-{state}", JobState(state)), [], [])
    assert stored(uri, f"in-{state}").info.status == status


def test_what_exceeds_the_limits_of_mlflow_is_cut_or_sent_in_parts(uri: str) -> None:
    many = {f"column-{number}": number for number in range(250)}
    hostile = {"..": 1, "a//b": 2, "a/b": 3, "a?b": 4, "a!b": 5, "n" * 300: 6, "": 7, "größe": 8, "long": "x" * 9000}
    document = job("rnn-lm-2", params={"many": many, "hostile": hostile}, reason="y" * 9000)
    runs = TrackedRuns(uri, "mine")
    runs.write(document, [series(*range(2500))], [])
    run = stored(uri, "rnn-lm-2")
    assert len(run.data.params) == 1 + 250 + len(hostile)
    assert run.data.params["hostile.größe"] == "8"
    assert len(run.data.params["hostile.long"]) == 6000
    assert len(run.data.tags["rolecall.reason"]) == 8000
    assert len(points(uri, run, "loss")) == 2500
    for name in hostile:
        TrackedRuns(uri, "mine").write(job(f"p{len(name)}", params={name: 1}), [], [])


def test_a_store_that_fails_is_an_error_that_hides_its_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(TrackerError, match=r"^the MLflow server http://\*\*\*@127.0.0.1:9 failed: ") as error:
        TrackedRuns("http://me:secret@127.0.0.1:9", "mine")
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)


def test_the_number_of_metrics_is_limited_and_a_new_one_costs_no_call(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow, "MAX_NAMES", 20)
    asked: list[str] = []
    history = MlflowClient.get_metric_history

    def counting(self: MlflowClient, run: str, name: str) -> Any:
        asked.append(name)
        return history(self, run, name)

    monkeypatch.setattr(MlflowClient, "get_metric_history", counting)
    point = {"step": 1, "at": "1960-01-01T00:00:00+00:00"} | {f"value {number}": 1.0 for number in range(50)}
    many = series(1).model_copy(update={"points": [point]})
    TrackedRuns(uri, "mine").write(job("rnn-lm-3"), [many], [])
    assert (asked, len(stored(uri, "rnn-lm-3").data.metrics)) == ([], 20)


def test_an_address_that_mlflow_does_not_know_is_refused() -> None:
    with pytest.raises(TrackerError, match="nonsense://x failed: ") as error:
        TrackedRuns("nonsense://x", "mine")
    assert error.value.status == 400


def test_the_missing_driver_of_a_database_is_named() -> None:
    with pytest.raises(
        MissingPackage, match=r"MLflow needs the package pymysql for mysql\+pymysql://\*\*\*@127.0.0.1/x"
    ):
        TrackedRuns("mysql+pymysql://me:secret@127.0.0.1/x", "mine")


LOGGED = """
import sys
from rolecall.logs import log_to_stderr
from rolecall.trackers.mlflow import TrackedRuns
log_to_stderr(form="json")
TrackedRuns(sys.argv[1], "mine")
"""


def test_what_mlflow_logs_about_a_database_has_the_format_of_the_program(tmp_path: Path) -> None:
    """In a process of its own, because the library configures its loggers when it is imported."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    command = [sys.executable, "-c", LOGGED, f"sqlite:///{tmp_path}/mlflow.db"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    loggers = {json.loads(line)["logger"].partition(".")[0] for line in done.stderr.splitlines()}
    assert (loggers, done.stdout) == ({"mlflow"}, "")


def test_the_remedy_for_the_missing_package(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(mlflow, "import_module", missing)
    with pytest.raises(MissingPackage, match=r"pip install 'rolecall\[mlflow\]'"):
        TrackedRuns(uri, "mine")
