"""A job of the service on a GPU: discovery, placement, the fork server and the sandbox together."""

import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from safetensors import safe_open
from tests.gpu.jobs import ENVIRONMENT, JOBS, ON_GPU, gpu_uuids, params_of, write_text

_START_S, _JOB_S = 120, 120


@contextmanager
def cluster(data: Path, inputs: Path) -> Iterator[httpx.Client]:
    """A master, a parameter server and a trainer on this machine; yields a client of the master."""
    token = secrets.token_urlsafe(32)
    given = {"ROLECALL_TOKEN": token, "ROLECALL_DATA_ROOTS": str(inputs), "XDG_CONFIG_HOME": str(data / "config")}
    command = [sys.executable, "-m", "rolecall.cli", "local", "--trainers", "1", "--port", "0", "--data", str(data)]
    environment = os.environ | ENVIRONMENT | given
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            ready = process.stdout.readline().split()
            assert ready, f"the cluster did not start: {logs(data)}"
            with httpx.Client(base_url=ready[1], headers={"Authorization": f"Bearer {token}"}, timeout=30) as client:
                yield client
        finally:
            process.terminate()


def logs(data: Path) -> str:
    return "\n".join(f"--- {log.name}\n{log.read_text()[-3000:]}" for log in sorted((data / "logs").glob("*")))


def await_end(client: httpx.Client, job: str) -> dict[str, Any]:
    """The job's document when it has ended."""
    deadline = time.monotonic() + _JOB_S
    while True:
        document = client.get(f"/jobs/{job}").raise_for_status().json()
        if document["state"] in ("succeeded", "failed", "cancelled"):
            return document
        assert time.monotonic() < deadline, f"the job has not ended after {_JOB_S} s: {document}"
        time.sleep(0.2)


def test_a_job_computes_on_the_gpu_of_its_node(tmp_path: Path, figures: dict[str, Any]) -> None:
    for package in ("fastapi", "sqlalchemy", "typer"):
        pytest.importorskip(package, exc_type=ImportError)
    if ON_GPU and not shutil.which("nvidia-smi"):
        pytest.skip("a node finds GPUs with nvidia-smi, which is not installed")
    write_text(tmp_path / "text.txt")
    params = params_of(JOBS["rnn-lm, trainer"], "float32", tmp_path)
    with cluster(tmp_path / "data", tmp_path) as client:
        nodes = client.get("/nodes").raise_for_status().json()["nodes"]
        (trainer,) = (node["spec"] for node in nodes if node["spec"]["role"] == "trainer")
        assert [gpu["uuid"] for gpu in trainer["machine"]["gpus"]] == list(gpu_uuids())
        accepted = client.post("/jobs", json={"workload": "rnn-lm", "params": params, "roles": {"trainer": 1}})
        assert accepted.status_code == 201, accepted.text
        document = await_end(client, accepted.json()["id"])
        assert document["state"] == "succeeded", f"{document['reason']}\n{logs(tmp_path / 'data')}"
    figures["result"] = document["result"]
    part = max((tmp_path / "data").rglob("*-trainer-0.safetensors"))
    with safe_open(part, framework="pt") as tensors:
        # Workers on a GPU save its generator, too.
        assert ("random/cuda" in tensors.keys()) == ON_GPU  # noqa: SIM118 - not a mapping
