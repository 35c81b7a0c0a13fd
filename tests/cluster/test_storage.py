"""Other storage of a cluster: PostgreSQL instead of SQLite, an fsspec URL instead of the master's volume."""

import io
import os
import signal
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.jobs import long_job, past_step, workers
from tests.conftest import Cluster, running_cluster
from tests.containers import until
from tests.volumes import filled, mounted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
SMALL = ("--trainers", "1")
LONG = 1500
_SHORTAGE_S = 5.0
"""Longer than all pauses between a job's attempts together, so that placements during the shortage would fail it."""
RESERVE = {"ROLECALL_RESERVE_BYTES": "8MiB"}


@pytest.fixture(scope="module")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("blobs")


@pytest.fixture(scope="module")
def elsewhere(postgres_url: str, blobs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that keeps its jobs in PostgreSQL and its blobs below a URL."""
    environment = {"ROLECALL_DATABASE_URL": postgres_url, "ROLECALL_BLOB_URL": blobs.as_uri()}
    with running_cluster(tmp_path_factory.mktemp("elsewhere"), *SMALL, environment=environment) as started:
        yield started


@pytest.fixture(scope="module")
def cramped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose master and whose nodes have a small volume each."""
    folder = tmp_path_factory.mktemp("cramped")
    with (
        mounted(folder / "master", "64m"),
        mounted(folder / "nodes", "64m"),
        running_cluster(folder, *SMALL, environment=RESERVE) as started,
    ):
        yield started


def job_of(rows: Path, max_steps: int = 1200) -> dict[str, Any]:
    """A few seconds of training, with a checkpoint every 100 steps."""
    return long_job(rows, trainers=1, max_steps=max_steps, checkpoint_every_steps=100)


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def recorded_blobs(cluster: Cluster, job: str) -> set[str]:
    """The parts of all checkpoints that count."""
    found = cluster.client.get(f"/jobs/{job}/checkpoints").json()["checkpoints"]
    return {part["blob"] for one in found for part in one["manifest"]["parts"]}


def test_a_cluster_on_postgresql_outlives_a_killed_master(elsewhere: Cluster, rows: Path) -> None:
    cluster = elsewhere
    job = cluster.submit(job_of(rows))
    before = workers(cluster.until(job, past_step(100)))
    os.kill(cluster.pid("master"), signal.SIGKILL)
    document = cluster.wait_for(job, "succeeded", 180)
    assert len(document["attempts"]) == 1
    after = workers(document)
    assert {name: one["pid"] for name, one in after.items()} == {name: one["pid"] for name, one in before.items()}
    assert document["result"]["steps"] == 1200
    assert not list((cluster.data / "master").glob("*.db"))


def test_checkpoints_and_artifacts_below_a_url(elsewhere: Cluster, rows: Path, blobs: Path) -> None:
    cluster = elsewhere
    job = cluster.submit(job_of(rows))
    gang = workers(cluster.until(job, past_step(450)))
    assert any(name.startswith("1/step-") for name in files_below(blobs / job))
    os.kill(gang["trainer-0"]["pid"], signal.SIGKILL)
    document = cluster.wait_for(job, "succeeded", 180)
    assert len(document["attempts"]) == 2
    assert "resumed from the checkpoint at step" in cluster.client.get(f"/jobs/{job}/events").text

    archive = cluster.client.get(f"/jobs/{job}/artifacts/model.zip").raise_for_status().content
    assert "model.safetensors" in zipfile.ZipFile(io.BytesIO(archive)).namelist()
    assert archive in {path.read_bytes() for path in (blobs / job).rglob("*model.zip*")}

    cluster.until(job, lambda _: stored_steps(blobs / job) == steps_of(recorded_blobs(cluster, job)), 20)
    assert 1 <= len(stored_steps(blobs / job)) <= 3
    assert not files_below(cluster.data / "master" / "blobs")


def test_a_full_volume_of_the_master_loses_nothing_and_all_goes_on_when_there_is_room(
    cramped: Cluster, rows: Path
) -> None:
    """Below the reserve, and then full: checkpoints and logs wait."""
    job = cramped.submit(job_of(rows, LONG))
    cramped.until(job, past_step(200))
    with filled(cramped.data / "master", but=4 << 20):
        until(lambda: refusals(cramped))
        ready = cramped.client.get("/readyz").raise_for_status().json()["volume"]
        assert ready["free"] < ready["reserve"]
        before = refusals(cramped)
        with filled(cramped.data / "master"):
            until(lambda: refusals(cramped) > before + 1)  # one may have been on its way
            assert cramped.client.get(f"/jobs/{job}").json()["state"] not in {"failed", "cancelled"}
    assert len(cramped.job(job)["attempts"]) == 1
    assert_succeeds(cramped, job)


def test_a_full_volume_of_the_nodes_costs_one_attempt_and_the_job_waits_until_there_is_room(
    cramped: Cluster, rows: Path
) -> None:
    job = cramped.submit(job_of(rows, LONG))
    cramped.until(job, past_step(200))
    with filled(cramped.data / "nodes"):
        cramped.until(job, lambda one: "its data folder" in (one["waiting_for"] or ""))
        time.sleep(_SHORTAGE_S)  # Nothing is to happen within this time.
        document = cramped.job(job)
        assert (document["state"], len(document["attempts"])) == ("queued", 1)
    assert_succeeds(cramped, job)


def assert_succeeds(cluster: Cluster, job: str) -> None:
    """The job ends with its logs and its model."""
    document = cluster.wait_for(job, "succeeded", 240)
    assert document["result"]["steps"] == LONG
    log = cluster.client.get(f"/jobs/{job}/logs").raise_for_status().text
    assert "[trainer-0]" in log
    archive = cluster.client.get(f"/jobs/{job}/artifacts/model.zip").raise_for_status().content
    assert zipfile.ZipFile(io.BytesIO(archive)).testzip() is None


def refusals(cluster: Cluster) -> int:
    """The number of times that workers have logged that the master has no room for their checkpoints."""
    return sum(log.read_bytes().count(b"(507 ") for log in (cluster.data / "nodes").rglob("log.txt"))


def stored_steps(folder: Path) -> set[str]:
    """The checkpoint parts that lie below `folder`."""
    return steps_of(files_below(folder))


def steps_of(blobs: set[str]) -> set[str]:
    return {blob.partition("-")[2].partition("-")[0] for blob in blobs if "/step-" in blob}
