"""`rnn-lm` on a real cluster: the example as it is shipped, and a gang that loses a worker."""

import io
import json
import os
import signal
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load as load_tensors
from tests.cluster.jobs import past_step, spans, workers
from tests.conftest import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]

ROOT = Path(__file__).parents[2]
# What tests/numerics/rnn_lm_reference.py gives for one epoch of the example, in one process.
REFERENCE_PERPLEXITY = 126.02


def example() -> dict[str, Any]:
    """With paths that don't depend on where the cluster was started."""
    text = (ROOT / "examples/rnn-lm.json").read_text()
    return json.loads(text.replace("examples/data", str(ROOT / "examples/data")))


def artifact(cluster: Cluster, job: str, name: str) -> bytes:
    return cluster.client.get(f"/jobs/{job}/artifacts/{name}").raise_for_status().content


def weights(cluster: Cluster, job: str) -> dict[str, torch.Tensor]:
    with zipfile.ZipFile(io.BytesIO(artifact(cluster, job, "model.zip"))) as archive:
        return load_tensors(archive.read("model.safetensors"))


def test_the_example_reaches_the_perplexity_of_one_process(cluster: Cluster) -> None:
    request = example()
    request["params"]["epochs"] = 1
    job = cluster.submit(request)
    result = cluster.wait_for(job, "succeeded", 480)["result"]
    assert result["test_perplexity"] == pytest.approx(REFERENCE_PERPLEXITY, rel=0.01)
    sample = artifact(cluster, job, "sample.txt").decode()
    assert sample.startswith("it is a truth")
    assert len(sample.split()) > 100
    series = cluster.client.get(f"/jobs/{job}/metrics").json()
    assert "validation_perplexity" in json.dumps(series)
    assert spans(cluster, job, "trainer-0") >= {"data", "look-up", "forward", "backward", "apply"}


def exact_job() -> dict[str, Any]:
    """Reproducible to the last bit, with a checkpoint every 20 steps; the LSTM's state crosses an attempt's end."""
    job = example()
    job["params"] |= {"max_steps": 160, "embedding_dim": 16, "hidden_dim": 16, "dropout": 0.2}
    job["params"] |= {"checkpoint_every_steps": 20, "checkpoint_every_s": None}
    job["params"]["text"] |= {"vocabulary": 500, "test": None, "train": job["params"]["text"]["train"][0]}
    return job


@pytest.fixture(scope="module")
def uninterrupted(cluster: Cluster) -> dict[str, torch.Tensor]:
    job = cluster.submit(exact_job())
    cluster.wait_for(job, "succeeded", 180)
    return weights(cluster, job)


@pytest.mark.parametrize("victim", ["trainer-1", "parameter-server-0"])
def test_a_killed_worker_costs_an_attempt_and_not_the_result(
    cluster: Cluster, uninterrupted: dict[str, torch.Tensor], victim: str
) -> None:
    job = cluster.submit(exact_job())
    gang = workers(cluster.until(job, past_step(25)))
    os.kill(gang[victim]["pid"], signal.SIGKILL)
    document = cluster.wait_for(job, "succeeded", 180)
    assert f"{victim} on {gang[victim]['node']}: killed by SIGKILL" in document["attempts"][0]["cause"]
    assert "resumed from the checkpoint at step" in cluster.client.get(f"/jobs/{job}/events").text
    torch.testing.assert_close(weights(cluster, job), uninterrupted, rtol=0, atol=0)
