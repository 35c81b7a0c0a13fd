"""Jobs that bring their own model, on a cluster whose operator allowed a folder."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.jobs import short_job
from tests.conftest import Cluster, running_cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
AUSTEN = Path(__file__).parents[2] / "examples/data/austen/persuasion.txt.gz"
THEIRS = '''
import torch
from torch import nn


def wide(inputs, width):
    return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, 1))


class Gated(nn.Module):
    """A GRU, where the workload has an LSTM."""

    def __init__(self, embedding_dim, hidden_dim):
        super().__init__()
        self.gru = nn.GRU(embedding_dim, hidden_dim)

    def forward(self, vectors, state):
        hidden, after = self.gru(vectors, state[0] if state else None)
        return hidden, (after,)


def mixing(dim, context):
    """A layer without attention: each token sees itself alone."""
    return nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.Tanh())


class Shared(nn.Module):
    """One trunk for actions and value."""

    def __init__(self, shape, outputs, width):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(shape[0], width), nn.Tanh())
        self.actions, self.value = nn.Linear(width, outputs), nn.Linear(width, 1)

    def forward(self, observations):
        features = self.trunk(observations)
        return self.actions(features), self.value(features).squeeze(-1)
'''
TEXT = {"train": str(AUSTEN), "validation": 0.02, "vocabulary": 300}
JOBS: dict[str, dict[str, Any]] = {
    "rnn-lm": {
        "params": {
            "text": TEXT,
            "embedding_dim": 8,
            "hidden_dim": 8,
            "model": {"builder": "their_models:Gated"},
            "max_steps": 20,
        }
    },
    "transformer-pipeline": {
        "params": {
            "text": TEXT,
            "context": 16,
            "layers": 4,
            "dim": 16,
            "batch_size": 8,
            "model": {"builder": "their_models:mixing"},
            "max_steps": 20,
            "sample": {"tokens": 4},
        }
    },
    "reinforce": {
        "params": {
            "environment": "CartPole-v1",
            "policy": {"name": "custom", "builder": "their_models:Shared", "arguments": {"width": 16}},
            "max_updates": 2,
            "evaluation": {"episodes": 2, "movie": False},
        }
    },
}


@pytest.fixture(scope="module")
def allowing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that lets jobs name what lies in one folder."""
    folder = tmp_path_factory.mktemp("plugins")
    (folder / "their_models.py").write_text(THEIRS)
    nodes = ("--stages", "2", "--observers", "1", "--trainers", "1")
    with running_cluster(
        tmp_path_factory.mktemp("cluster"), *nodes, environment={"ROLECALL_PLUGINS": str(folder)}
    ) as started:
        yield started


def test_dense_layers_of_ones_own(allowing: Cluster, rows: Path) -> None:
    body = short_job(rows, trainers=1, epochs=1)
    del body["params"]["hidden"]
    body["params"]["model"] = {"builder": "their_models:wide", "arguments": {"width": 12}}
    document = allowing.wait_for(allowing.submit(body), "succeeded")
    assert document["result"]["validation_auc"] > 0.5


@pytest.mark.parametrize("workload", JOBS)
def test_a_model_of_ones_own_is_trained(allowing: Cluster, workload: str) -> None:
    roles = {"observer": 1} if workload == "reinforce" else {"trainer": 1} if workload == "rnn-lm" else {"stage": 2}
    job = allowing.submit({"workload": workload, "roles": roles, **JOBS[workload]})
    document = allowing.wait_for(job, "succeeded", 240)
    assert document["result"]
    artifacts = allowing.client.get(f"/jobs/{job}/artifacts").raise_for_status().json()["artifacts"]
    assert "model.zip" in {artifact["name"] for artifact in artifacts}


def test_what_the_operator_did_not_allow_fails_at_once(allowing: Cluster, rows: Path) -> None:
    body = short_job(rows, trainers=1)
    del body["params"]["hidden"]
    body["params"]["model"] = {"builder": "os:system"}
    document = allowing.wait_for(allowing.submit(body), "failed")
    assert "has not allowed os" in document["reason"]
    assert len(document["attempts"]) == 1
