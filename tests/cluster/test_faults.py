"""Faults on a real cluster, and their effects on its jobs."""

import io
import os
import signal
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load as load_tensors
from tests.cluster.jobs import long_job, past_step, short_job, workers
from tests.conftest import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def exact_job(rows: Path) -> dict[str, Any]:
    """Reproducible to the last bit, with a checkpoint every 40 steps."""
    return long_job(rows, max_steps=400, precision="float64", dropout=0.1, checkpoint_every_steps=40)


def weights(cluster: Cluster, job: str) -> dict[str, torch.Tensor]:
    content = cluster.client.get(f"/jobs/{job}/artifacts/model.zip").content
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return load_tensors(archive.read("model.safetensors"))


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def seconds_until_gone(pids: list[int], bound_s: float) -> float:
    begin = time.monotonic()
    while not all(map(is_gone, pids)):
        assert time.monotonic() < begin + bound_s, f"still there after {bound_s} s"
        time.sleep(0.02)
    return time.monotonic() - begin


@pytest.fixture(scope="module")
def uninterrupted(cluster: Cluster, rows: Path) -> dict[str, torch.Tensor]:
    job = cluster.submit(exact_job(rows))
    cluster.wait_for(job, "succeeded")
    return weights(cluster, job)


@pytest.mark.parametrize("victim", ["trainer-1", "parameter-server-0", "master-0"])
def test_a_killed_worker_costs_an_attempt_and_not_the_result(
    cluster: Cluster, rows: Path, uninterrupted: dict[str, torch.Tensor], victim: str
) -> None:
    job = cluster.submit(exact_job(rows))
    gang = workers(cluster.until(job, past_step(45)))
    os.kill(gang[victim]["pid"], signal.SIGKILL)
    assert seconds_until_gone([worker["pid"] for worker in gang.values()], 2.0) <= 2.0
    document = cluster.wait_for(job, "succeeded")
    first, second = document["attempts"]
    assert first["state"] == "failed"
    assert f"{victim} on {gang[victim]['node']}: killed by SIGKILL" in first["cause"]
    assert "resumed from the checkpoint at step" in cluster.client.get(f"/jobs/{job}/events").text
    assert second["state"] == "succeeded"
    torch.testing.assert_close(weights(cluster, job), uninterrupted, rtol=0, atol=0)


def test_a_stopped_worker_is_noticed_like_a_dead_one(cluster: Cluster, rows: Path) -> None:
    job = cluster.submit(long_job(rows, max_steps=400, checkpoint_every_steps=40))
    gang = workers(cluster.until(job, past_step(45)))
    os.kill(gang["trainer-0"]["pid"], signal.SIGSTOP)
    assert seconds_until_gone([worker["pid"] for worker in gang.values()], 6.0) <= 6.0
    document = cluster.wait_for(job, "succeeded")
    assert "trainer-0" in document["attempts"][0]["cause"]
    assert "stopped" in document["attempts"][0]["cause"]


def test_restarts_are_bounded(cluster: Cluster, rows: Path) -> None:
    job = cluster.submit(long_job(rows) | {"max_restarts": 0})
    os.kill(workers(cluster.until(job, past_step(10)))["trainer-0"]["pid"], signal.SIGKILL)
    document = cluster.wait_for(job, "failed", 20)
    assert "killed by SIGKILL" in document["reason"]
    assert cluster.client.post(f"/jobs/{job}/retry").is_success
    cluster.until(job, past_step(10))


def test_a_killed_master_loses_nothing_and_running_jobs_continue(cluster: Cluster, rows: Path) -> None:
    running = cluster.submit(long_job(rows, max_steps=1000, checkpoint_every_steps=300))
    before = workers(cluster.until(running, past_step(50)))
    queued = cluster.submit(short_job(rows))
    cluster.until(queued, lambda document: document["waiting_for"], 10)
    assert cluster.job(running)["state"] == "running"
    os.kill(cluster.pids["master"], signal.SIGKILL)
    document = cluster.wait_for(running, "succeeded", 180)
    assert len(document["attempts"]) == 1
    assert {name: worker["pid"] for name, worker in workers(document).items()} == {
        name: worker["pid"] for name, worker in before.items()
    }
    cluster.wait_for(queued, "succeeded")


def test_the_master_container_killed_costs_an_attempt(cluster: Cluster, rows: Path) -> None:
    """Control program, node and driver rank die together."""
    job = cluster.submit(long_job(rows, max_steps=500, checkpoint_every_steps=60))
    driver = workers(cluster.until(job, past_step(65)))["master-0"]["pid"]
    for pid in (cluster.pids["master"], cluster.pids["master-0"]):
        os.kill(pid, signal.SIGKILL)
    seconds_until_gone([driver], 2.0)
    document = cluster.wait_for(job, "succeeded", 180)
    assert len(document["attempts"]) == 2
    assert "resumed from the checkpoint at step" in cluster.client.get(f"/jobs/{job}/events").text


def test_a_killed_node_takes_its_workers_along_and_comes_back(cluster: Cluster, rows: Path) -> None:
    job = cluster.submit(long_job(rows, max_steps=500, checkpoint_every_steps=60))
    gang = workers(cluster.until(job, past_step(65)))
    os.kill(cluster.pids["trainer-1"], signal.SIGKILL)
    seconds_until_gone([gang["trainer-1"]["pid"]], 2.0)
    document = cluster.wait_for(job, "succeeded", 180)
    assert len(document["attempts"]) == 2
    assert "trainer-1" in document["attempts"][0]["cause"]


@pytest.mark.parametrize("state", ["queued", "placed", "stopping", "paused"])
def test_cancel_works_in_every_state(cluster: Cluster, rows: Path, state: str) -> None:
    job = cluster.submit(long_job(rows, trainers=9 if state == "queued" else 2))
    match state:
        case "queued":
            cluster.until(job, lambda document: document["waiting_for"], 10)
        case "placed":
            cluster.until(job, lambda document: document["state"] in {"placed", "running"}, 10)
        case "stopping" | "paused":
            cluster.until(job, past_step(10))
            cluster.client.post(f"/jobs/{job}/pause")
            if state == "paused":
                cluster.wait_for(job, "paused", 20)
        case _:
            raise AssertionError(state)
    assert cluster.client.post(f"/jobs/{job}/cancel").is_success
    cluster.wait_for(job, "cancelled", 20)
    assert cluster.until(job, lambda document: document["ended_at"], 5)
