"""Timeline, stacks and profile of workers on a real cluster: running, stopped by a signal, and ended."""

import gzip
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.jobs import long_job, past_step, workers
from tests.conftest import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


def names(document: dict[str, Any], key: str = "workers") -> set[str]:
    return {f"{one['role']}-{one['role_rank']}" for one in document[key]}


def test_a_running_job_shows_what_its_workers_do(cluster: Cluster, rows: Path) -> None:
    job = cluster.submit(long_job(rows))
    document = cluster.until(job, past_step(30))
    gang = set(workers(document))

    begin = time.monotonic()
    shown = cluster.client.get(f"/jobs/{job}/timeline").raise_for_status().json()
    print("timeline", time.monotonic() - begin, shown["silent"])
    assert shown["live"] and names(shown) | names(shown, "silent") == gang
    trainer = next(one for one in shown["workers"] if (one["role"], one["role_rank"]) == ("trainer", 0))
    print({span[0] for span in trainer["spans"]}, len(trainer["spans"]), trainer["steps"][-3:])
    for one in shown["workers"]:
        print(one["role"], one["role_rank"], len(one["spans"]), one["clock_uncertainty_s"], one["cut"])

    traced = cluster.client.get(f"/jobs/{job}/timeline?format=trace&steps=2").raise_for_status().json()
    assert {"M", "X"} == {event["ph"] for event in traced["traceEvents"]}
    picture = cluster.client.get(f"/jobs/{job}/timeline?format=svg").raise_for_status()
    Path("/tmp/timeline.svg").write_text(picture.text)

    begin = time.monotonic()
    stacks = cluster.client.post(f"/jobs/{job}/stacks").raise_for_status().json()
    print("stacks", time.monotonic() - begin, stacks["silent"])
    for one in stacks["workers"]:
        print(one["role"], one["role_rank"], [(t["thread"], t["frames"][:3]) for t in one["threads"]])

    begin = time.monotonic()
    answer = cluster.client.post(f"/jobs/{job}/profile", json={"role": "trainer", "steps": 20})
    print("profile", time.monotonic() - begin, answer.status_code, answer.text)
    name = answer.json()["workers"][0]["artifact"]
    while name not in {one["name"] for one in cluster.client.get(f"/jobs/{job}/artifacts").json()["artifacts"]}:
        assert time.monotonic() < begin + 60
        time.sleep(0.2)
    print("stored", time.monotonic() - begin)
    trace = json.loads(gzip.decompress(cluster.client.get(f"/jobs/{job}/artifacts/{name}").content))
    print(len(trace["traceEvents"]), cluster.client.get(f"/jobs/{job}/events").json()["events"][-1])

    pid = workers(cluster.job(job))["trainer-1"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    begin = time.monotonic()
    stacks = cluster.client.post(f"/jobs/{job}/stacks").raise_for_status().json()
    print("stopped", time.monotonic() - begin, stacks["silent"])
    os.kill(pid, signal.SIGCONT)
    cluster.client.post(f"/jobs/{job}/cancel")
    cluster.wait_for(job, "cancelled")
    time.sleep(1)
    shown = cluster.client.get(f"/jobs/{job}/timeline").raise_for_status().json()
    print("ended", shown["live"], names(shown), shown["silent"])
    print(cluster.client.post(f"/jobs/{job}/stacks").text)
    assert 0
