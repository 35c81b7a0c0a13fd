"""Timeline, stacks and profile of workers on a real cluster: running, stopped by a signal, and ended."""

import gzip
import json
import os
import signal
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from tests.cluster.jobs import long_job, past_step, workers
from tests.conftest import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]
_BOUND_S = 12.0
"""More than the master waits for workers that don't answer."""


def names(document: dict[str, Any], key: str = "workers") -> set[str]:
    return {f"{one['role']}-{one['role_rank']}" for one in document[key]}


def test_what_the_workers_of_a_job_do(cluster: Cluster, rows: Path) -> None:
    """One job for all, because its start takes the time."""
    job = cluster.submit(long_job(rows))
    gang = workers(cluster.until(job, past_step(30)))
    _assert_timeline(cluster, job, set(gang))
    stacks = cluster.client.post(f"/jobs/{job}/stacks").raise_for_status().json()
    assert names(stacks) == set(gang)
    waiting = next(one for one in stacks["workers"] if one["role"] == "master")["threads"][0]
    assert waiting["thread"] == "MainThread"
    assert any("embedding_ddp/master.py" in frame for frame in waiting["frames"])
    _assert_profile(cluster, job)
    _assert_stopped_worker_is_listed(cluster, job, gang["trainer-1"]["pid"])
    cluster.client.post(f"/jobs/{job}/cancel")
    cluster.wait_for(job, "cancelled")
    deadline = time.monotonic() + 10
    while names(left := cluster.client.get(f"/jobs/{job}/timeline").json()) != set(gang):
        assert time.monotonic() < deadline, left["silent"]
        time.sleep(0.1)
    assert not left["live"]
    assert cluster.client.post(f"/jobs/{job}/stacks").status_code == 409


def _assert_timeline(cluster: Cluster, job: str, gang: set[str]) -> None:
    shown = cluster.client.get(f"/jobs/{job}/timeline").raise_for_status().json()
    assert shown["live"]
    assert names(shown) == gang
    phases = {f"{one['role']}-{one['role_rank']}": {span[0] for span in one["spans"]} for one in shown["workers"]}
    assert phases["trainer-0"] >= {"data", "look-up", "forward", "backward", "apply"}
    assert "apply" in phases["parameter-server-0"]
    for one in shown["workers"]:
        ends = [begin + seconds for _, begin, seconds in one["steps"]]
        begins = [begin for _, begin, _ in one["steps"]]
        assert all(end <= begin + 1e-6 for end, begin in zip(ends[:-1], begins[1:], strict=True))
        # All nodes are on this machine, whose clock they share.
        assert one["clock_uncertainty_s"] == 0.0


def _assert_profile(cluster: Cluster, job: str) -> None:
    answer = cluster.client.post(f"/jobs/{job}/profile", json={"role": "trainer", "steps": 20})
    assert answer.status_code == 202, answer.text
    (worker,) = answer.json()["workers"]
    deadline = time.monotonic() + 60
    while worker["artifact"] not in cluster.client.get(f"/jobs/{job}/artifacts").text:
        assert time.monotonic() < deadline, cluster.logs()
        time.sleep(0.1)
    content = cluster.client.get(f"/jobs/{job}/artifacts/{worker['artifact']}").content
    operations = {event.get("name") for event in json.loads(gzip.decompress(content))["traceEvents"]}
    assert "aten::addmm" in operations
    # On a machine without a GPU, the profiler of torch would report that in the job's log.
    assert "gpuGetDeviceCount" not in cluster.client.get(f"/jobs/{job}/logs").text
    server = cluster.client.post(f"/jobs/{job}/profile", json={"role": "parameter-server"}).json()
    assert "runs no steps" in server["silent"][0]["reason"]


def _assert_stopped_worker_is_listed(cluster: Cluster, job: str, pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    begin = time.monotonic()
    stacks = cluster.client.post(f"/jobs/{job}/stacks").raise_for_status().json()
    os.kill(pid, signal.SIGCONT)
    assert time.monotonic() - begin < _BOUND_S
    assert [(one["role_rank"], one["reason"]) for one in stacks["silent"]] == [
        (1, "its process is stopped by a signal")
    ]
    picture = cluster.client.get(f"/jobs/{job}/timeline?format=svg").raise_for_status()
    assert ET.fromstring(picture.text).tag.endswith("svg")
