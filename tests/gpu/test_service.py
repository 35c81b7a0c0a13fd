# pyright: standard
"""Jobs of the service on a GPU: discovery, placement, the fork server and the sandbox together."""

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import pytest
from safetensors import safe_open
from tests.gpu.jobs import ENVIRONMENT, JOBS, ON_GPU, gpu_uuids, params_of, require_nvml, write_text
from tests.gpu.test_training import NEEDS

_START_S, _JOB_S = 120, 120
EXAMPLES = Path(__file__).parents[2] / "examples"
TWO_OF_EACH = {"trainers": 2, "stages": 2, "observers": 2}
SHORT: dict[str, dict[str, Any]] = {
    # Its files need pyarrow, which doesn't fit among the wheels that are carried to the machine.
    "embedding-ddp": {"max_steps": 4, "data": {"synthetic": {"rows": 3000, "columns": 8, "numbers": 5}}},
    "resnet-pipeline": {"max_steps": 4},
    "rnn-lm": {"max_steps": 4, "sample": {"tokens": 5}},
    "transformer-pipeline": {"max_steps": 4, "sample": {"tokens": 5}},
    "reinforce": {"max_updates": 2, "evaluation": {"episodes": 2, "movie": False}},
}
"""The parameters that end an example after a few steps, and the generated rows of `embedding-ddp`."""


@contextmanager
def cluster(
    data: Path, inputs: Path, nodes: Mapping[str, int] = MappingProxyType({"trainers": 1}), **environment: str
) -> Generator[httpx.Client]:
    """A master, a parameter server and these nodes on this machine; yields a client of the master."""
    token = secrets.token_urlsafe(32)
    given = {"ROLECALL_TOKEN": token, "ROLECALL_DATA_ROOTS": str(inputs), "XDG_CONFIG_HOME": str(data / "config")}
    command = [sys.executable, "-m", "rolecall.cli", "local", "--port", "0", "--data", str(data)]
    command += [word for role, count in nodes.items() for word in (f"--{role}", str(count))]
    environment = os.environ | ENVIRONMENT | given | environment
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


def await_end(client: httpx.Client, job: str, meanwhile: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """The job's document when it has ended. Calls `meanwhile` until then."""
    deadline = time.monotonic() + _JOB_S
    while True:
        document = client.get(f"/jobs/{job}").raise_for_status().json()
        if document["state"] in ("succeeded", "failed", "cancelled"):
            return document
        meanwhile()
        assert time.monotonic() < deadline, f"the job has not ended after {_JOB_S} s: {document}"
        time.sleep(0.2)


def series_of_gpus(node: str, metrics_token: str) -> set[str]:
    """The names of the series about GPUs that a node exports."""
    found = httpx.get(f"{node}/metrics", headers={"Authorization": f"Bearer {metrics_token}"})
    lines = found.raise_for_status().text.splitlines()
    return {line.partition("{")[0] for line in lines if "gpu=" in line}


def require_service() -> None:
    for package in ("fastapi", "sqlalchemy", "typer"):
        pytest.importorskip(package, exc_type=ImportError)
    if ON_GPU:
        require_nvml()


def test_a_job_computes_on_the_gpu_of_its_node(tmp_path: Path, figures: dict[str, Any]) -> None:
    require_service()
    write_text(tmp_path / "text.txt")
    params = params_of(JOBS["rnn-lm, trainer"], "float32", tmp_path)
    metrics_token = secrets.token_urlsafe(32)
    with cluster(tmp_path / "data", tmp_path, ROLECALL_METRICS_TOKEN=metrics_token) as client:
        nodes = client.get("/nodes").raise_for_status().json()["nodes"]
        (trainer,) = (node["spec"] for node in nodes if node["spec"]["role"] == "trainer")
        assert [gpu["uuid"] for gpu in trainer["machine"]["gpus"]] == list(gpu_uuids())
        accepted = client.post("/jobs", json={"workload": "rnn-lm", "params": params, "roles": {"trainer": 1}})
        assert accepted.status_code == 201, accepted.text
        scraped = set[str]()
        node = f"http://{trainer['address']}:{trainer['metrics_port']}"
        document = await_end(client, accepted.json()["id"], lambda: scraped.update(series_of_gpus(node, metrics_token)))
        assert document["state"] == "succeeded", f"{document['reason']}\n{logs(tmp_path / 'data')}"
    figures["result"] = document["result"]
    # Not those of the worker's memory, because the job may end before the worker's first measurement.
    exported = {f"rolecall_{name}" for name in ("gpu_use_ratio", "gpu_memory_total_bytes", "worker_gpu_info")}
    assert exported <= scraped if ON_GPU else not scraped
    part = max((tmp_path / "data").rglob("*-trainer-0.safetensors"))
    with safe_open(part, framework="pt") as tensors:
        # Workers on a GPU save its generator, too.
        assert ("random/cuda" in tensors.keys()) == ON_GPU  # noqa: SIM118 - not a mapping


@pytest.fixture(scope="module")
def sharing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A cluster whose workers share GPUs, with two nodes of each role that computes."""
    require_service()
    data = tmp_path_factory.mktemp("sharing")
    # One GPU, although the machine may have more.
    environment = {"CUDA_VISIBLE_DEVICES": "".join(gpu_uuids()[:1]), "ROLECALL_WORKERS_PER_GPU": "2"}
    with cluster(data, EXAMPLES, TWO_OF_EACH, **environment) as client:
        yield client


@pytest.mark.parametrize("name", SHORT)
def test_an_example_runs_on_one_gpu(name: str, sharing: httpx.Client) -> None:
    """Two trainers or stages share it, which the log says. The observers are on the CPU, as in compose.gpu.yaml."""
    pytest.importorskip(NEEDS.get(name, "torch"), exc_type=ImportError)
    job = json.loads((EXAMPLES / f"{name}.json").read_text().replace("examples/data", str(EXAMPLES / "data")))
    job["params"] |= SHORT[name]
    if name == "reinforce":
        job["roles"]["observer"] = {"count": 2, "gpus": 0}
    accepted = sharing.post("/jobs", json=job)
    assert accepted.status_code == 201, accepted.text
    document = await_end(sharing, accepted.json()["id"])
    log = sharing.get(f"/jobs/{document['id']}/logs").raise_for_status().text
    assert document["state"] == "succeeded", f"{document['reason']}\n{log}"
    # The agent of `reinforce` is alone on the GPU.
    assert ("event=gpu_shared" in log) == (ON_GPU and name != "reinforce")
