"""A job that names what it may not ends at once, on real nodes, and nothing of it runs."""

import os
import time
from pathlib import Path

import pytest
from tests.conftest import Cluster

pytestmark = pytest.mark.timeout(120)
ROOTS = "(ROLECALL_DATA_ROOTS): "


def language_model(path: str) -> dict[str, object]:
    """A job that would leave the words of `path` in its vocabulary."""
    params = {"text": {"train": path, "validation": 0}, "embedding_dim": 4, "hidden_dim": 4, "max_steps": 1}
    return {"workload": "rnn-lm", "roles": {"trainer": 1}, "params": params}


def test_a_file_outside_the_roots_is_refused_by_the_master_or_by_the_node(cluster: Cluster) -> None:
    for path in ("/etc/passwd", f"/proc/{cluster.pid('trainer-0')}/environ", "file:///etc/passwd"):
        answer = cluster.client.post("/jobs", json=language_model(path))
        assert answer.status_code == 422
        (error,) = answer.json()["errors"]
        assert error["field"] == "params.text.train.0"
        assert ROOTS in error["message"]
    started = time.monotonic()
    relative = os.path.relpath("/etc/passwd", Path.cwd())  # the nodes' working directory too, as the master can't know
    job = cluster.submit(language_model(relative))
    document = cluster.wait_for(job, "failed", 20)
    assert time.monotonic() - started < 20
    assert f"{relative} is outside the folders that jobs may read {ROOTS}" in document["reason"]
    assert len(document["attempts"]) == 1
    assert cluster.client.get(f"/jobs/{job}/artifacts").json()["artifacts"] == []
