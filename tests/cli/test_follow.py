"""The commands of a job's life cycle, from `submit --follow` to `artifacts`."""

import io
import json
import os
import signal
import subprocess
import zipfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
from mlflow import MlflowClient
from tests.cluster.jobs import long_job, past_step, short_job
from tests.conftest import ROLECALL, Cluster
from tests.trackers.test_tensorboard import events, scalars

from rolecall.spec.numbers import size

from .command import run_with

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@contextmanager
def running(cluster: Cluster, *arguments: str) -> Generator[subprocess.Popen[str]]:
    """A running command, which is killed at the end of the block."""
    pipe = subprocess.PIPE
    command = [*ROLECALL, *arguments]
    with subprocess.Popen(command, env=cluster.environment, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def submitted(cluster: Cluster, body: dict[str, Any], folder: Path) -> Generator[tuple[subprocess.Popen[str], str]]:
    """A running `submit --follow` that follows its job, and the job's id."""
    (folder / "job.json").write_text(json.dumps(body))
    with running(cluster, "submit", str(folder / "job.json"), "--follow") as process:
        job = line_with(process.stderr, "job ").split()[1]
        line_with(process.stderr, "submitted")
        yield process, job


def line_with(stream: IO[str] | None, text: str) -> str:
    """The next line that contains `text`. Only the timeout of the test limits the wait."""
    assert stream
    read: list[str] = []
    for line in stream:
        read.append(line)
        if text in line:
            return line
    pytest.fail(f"no line with {text!r} in:\n{''.join(read)}")


def ended(process: subprocess.Popen[str], code: int) -> tuple[str, str]:
    """The remaining output of the command, whose exit code must be `code`."""
    stdout, stderr = process.communicate(timeout=240)
    assert process.returncode == code, f"{stdout}\n{stderr}"
    return stdout, stderr


def run(cluster: Cluster, *arguments: str, code: int = 0) -> str:
    done = run_with(cluster, *arguments)
    assert done.code == code, f"{done.out}\n{done.err}"
    return done.out


@pytest.fixture(scope="module")
def done(cluster: Cluster, rows: Path) -> str:
    """A job that has succeeded."""
    job = cluster.submit(short_job(rows) | {"name": "follow-me"})
    cluster.wait_for(job, "succeeded")
    return job


def test_a_followed_job_that_succeeds(cluster: Cluster, rows: Path, tmp_path: Path) -> None:
    with submitted(cluster, short_job(rows), tmp_path) as (process, job):
        stdout, _ = ended(process, 0)
    (last,) = stdout.splitlines()
    assert last.startswith("embedding-ddp succeeded: ")
    assert f"validation_auc={cluster.job(job)['result']['validation_auc']:.4f}" in last


def test_old_checkpoints_that_are_deleted_are_no_news_to_who_follows(
    cluster: Cluster, rows: Path, tmp_path: Path
) -> None:
    job = short_job(rows)
    job["params"] |= {"checkpoint_every_steps": 1, "max_steps": 20}
    with submitted(cluster, job, tmp_path) as (process, name):
        _, stderr = ended(process, 0)
        cluster.until(name, lambda _: "newer ones are kept" in run(cluster, "events", name))
    assert "succeeded" in stderr
    assert "newer ones are kept" not in stderr


def test_a_followed_job_that_fails_says_why(cluster: Cluster, rows: Path, tmp_path: Path) -> None:
    with submitted(cluster, short_job(tmp_path / "nowhere.csv"), tmp_path) as (process, _):
        stdout, stderr = ended(process, 1)
    assert stdout.startswith("embedding-ddp failed: ")
    assert f"{tmp_path}/nowhere.csv does not exist" in stdout
    assert stderr.count("nowhere.csv does not exist") == 1
    assert f"{tmp_path}/nowhere.csv does not exist" in run(cluster, "jobs")


def test_a_followed_job_that_is_cancelled(cluster: Cluster, rows: Path, tmp_path: Path) -> None:
    with submitted(cluster, long_job(rows), tmp_path) as (process, job):
        cluster.until(job, past_step(10))
        assert f"job {job} is stopping" in run(cluster, "cancel", job)
        stdout, _ = ended(process, 3)
    assert stdout.startswith("embedding-ddp cancelled")


def test_ctrl_c_stops_following_but_not_the_job(cluster: Cluster, rows: Path, tmp_path: Path) -> None:
    with submitted(cluster, long_job(rows), tmp_path) as (process, job):
        cluster.until(job, past_step(10))
        process.send_signal(signal.SIGINT)
        stdout, stderr = ended(process, 130)
        step = cluster.job(job)["progress"]["step"]
    assert not stdout
    assert f"job {job} continues; to follow it again: rolecall show {job} --follow" in stderr
    cluster.until(job, past_step(step + 20))
    with running(cluster, "show", job, "--follow") as process:
        line_with(process.stderr, "submitted")
        run(cluster, "cancel", job)
        ended(process, 3)


def test_following_survives_a_killed_master(cluster: Cluster, rows: Path, tmp_path: Path) -> None:
    with submitted(cluster, long_job(rows, max_steps=500), tmp_path) as (process, job):
        cluster.until(job, past_step(10))
        os.kill(cluster.pid("master"), signal.SIGKILL)
        stdout, stderr = ended(process, 0)
    assert "the master does not answer" in stderr
    assert "the master answers again" in stderr
    assert stdout.startswith("embedding-ddp succeeded: ")
    assert len(cluster.job(job)["attempts"]) == 1


def submit_with_a_bad_row(cluster: Cluster, rows: Path, folder: Path) -> str:
    """A long job whose log has a line about row 6002."""
    path = folder / "rows.csv"
    path.write_text(rows.read_text() + "too,few\n")
    body = long_job(path)
    body["params"]["data"]["max_bad_rows"] = 1
    return cluster.submit(body)


def test_logs_are_followed_to_the_end(cluster: Cluster, rows: Path, tmp_path: Path) -> None:
    job = submit_with_a_bad_row(cluster, rows, tmp_path)
    with running(cluster, "logs", job, "-f") as process:
        first = line_with(process.stdout, "row 6002: 2 columns instead of 5")
        cluster.until(job, past_step(10))
        run(cluster, "cancel", job)
        rest, _ = ended(process, 0)
    assert cluster.job(job)["state"] == "cancelled"
    whole = run(cluster, "logs", job).splitlines()
    assert {first.rstrip("\n"), *rest.splitlines()} <= set(whole)
    stop_lines = [line for line in whole if "stopped: " in line]
    assert stop_lines
    assert sorted(line for line in rest.splitlines() if "stopped: " in line) == sorted(stop_lines)
    only = run(cluster, "logs", job, "--role", "trainer", "--json")
    assert sorted(json.loads(only)) == sorted(line for line in whole if line.startswith("[trainer-"))
    each = run(cluster, "logs", job, "-f", "--json").splitlines()
    assert sorted(map(json.loads, each)) == sorted(whole)


def test_followed_logs_continue_after_a_restart_of_the_master(cluster: Cluster, rows: Path, tmp_path: Path) -> None:
    job = submit_with_a_bad_row(cluster, rows, tmp_path)
    with running(cluster, "logs", job, "-f") as process:
        first = line_with(process.stdout, "row 6002: 2 columns instead of 5")
        cluster.until(job, past_step(10))
        os.kill(cluster.pid("master"), signal.SIGKILL)
        line_with(process.stderr, "the master answers again")
        run(cluster, "cancel", job)
        rest, _ = ended(process, 0)
    whole = run(cluster, "logs", job).splitlines()
    shown = [first.rstrip("\n"), *rest.splitlines()]
    assert len(shown) == len(set(shown))
    assert [line for line in whole if "stopped: " in line]
    assert {line for line in whole if "stopped: " in line} <= set(shown)


def test_pause_resume_cancel_and_retry(cluster: Cluster, rows: Path) -> None:
    job = cluster.submit(long_job(rows))
    cluster.until(job, past_step(10))
    run(cluster, "pause", job)
    cluster.wait_for(job, "paused", 20)
    with running(cluster, "watch", job) as process:
        shown = line_with(process.stderr, "step ")
        assert "left" not in shown
        assert "samples/s" not in shown
    assert json.loads(run(cluster, "resume", job, "--json"))["state"] == "queued"
    cluster.until(job, past_step(10))
    run(cluster, "retry", job, code=5)
    run(cluster, "cancel", job)
    cluster.wait_for(job, "cancelled", 20)
    run(cluster, "cancel", job, code=5)
    assert f"job {job} is queued" in run(cluster, "retry", job)
    document = cluster.until(job, past_step(10))
    assert len(document["attempts"]) == 3
    run(cluster, "cancel", job)
    cluster.wait_for(job, "cancelled", 20)


def test_the_metrics_of_a_job_for_tensorboard(cluster: Cluster, done: str, tmp_path: Path) -> None:
    said = run(cluster, "tensorboard", done, "--dir", str(tmp_path / "runs"), "--follow")
    assert f"to see them: tensorboard --logdir {tmp_path}/runs" in " ".join(said.split())
    reported = {tag for tag, *_ in scalars(tmp_path / "runs" / done / "attempt-1/trainer-0")}
    assert {"loss", "samples_per_s", "validation_auc"} <= reported
    texts = [value.tag for event in events(tmp_path / "runs" / done) for value in event.summary.value]
    assert texts == ["request/text_summary", "result/text_summary"]


def test_a_job_for_mlflow(cluster: Cluster, done: str, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    written = [
        run(cluster, "mlflow", done, "--tracking-uri", uri, "--experiment", "mine", "--follow") for _ in range(2)
    ]
    assert "wrote 0 values to experiment 'mine'" in " ".join(written[1].split())
    (found,) = MlflowClient(uri).search_runs(["1"])
    document = cluster.job(done)
    assert (found.info.status, found.info.run_name) == ("FINISHED", "follow-me")
    assert found.data.params["sparse_optimizer.lr"] == "0.05"
    assert found.data.metrics["result.validation_auc"] == document["result"]["validation_auc"]
    steps = [point.step for point in MlflowClient(uri).get_metric_history(found.info.run_id, "trainer-1/loss")]
    assert steps == sorted(set(steps))
    assert steps[-1] == document["progress"]["step"]


def test_artifacts_are_listed_and_downloaded(cluster: Cluster, done: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.zip"
    assert run(cluster, "artifacts", done, "model.zip", "-o", str(path)).strip() == str(path)
    assert path.read_bytes() == cluster.client.get(f"/jobs/{done}/artifacts/model.zip").content
    assert "model.safetensors" in zipfile.ZipFile(io.BytesIO(path.read_bytes())).namelist()
    listed = [line.split()[:3] for line in run(cluster, "artifacts", done).splitlines()]
    assert ["model.zip", *size(path.stat().st_size).split()] in listed
    run(cluster, "artifacts", done, "nothing.zip", "-o", str(tmp_path / "nothing.zip"), code=4)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["mine.zip"]


def test_jobs_and_show_print_json_and_text(cluster: Cluster, done: str) -> None:
    assert json.loads(run(cluster, "show", done, "--json")) == cluster.job(done)
    listed = json.loads(run(cluster, "jobs", "--json", "--state", "succeeded"))["jobs"]
    assert done in [job["id"] for job in listed]
    assert {job["state"] for job in listed} == {"succeeded"}
    assert len(json.loads(run(cluster, "jobs", "--json", "--limit", "1"))["jobs"]) == 1
    shown = run(cluster, "show", done)
    assert "follow-me" in shown
    assert "parameter-server-0" in shown
    assert "attempt 1 succeeded" in shown
