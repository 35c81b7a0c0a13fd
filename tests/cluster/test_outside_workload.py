# pyright: standard
"""The worked examples of `docs/adding-a-workload.md`, installed as a user would and run on a real cluster."""

import io
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pyarrow import csv
from safetensors.numpy import load
from tests.conftest import Cluster, running_cluster
from tokenizers import Tokenizer

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with the examples in a folder outside of Rolecall's own environment."""
    target = tmp_path_factory.mktemp("installed")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--target", str(target)]
    examples = [str(EXAMPLES / name) for name in ("workload", "word2vec")]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, *examples], check=True)
    roots = f"{os.environ['ROLECALL_DATA_ROOTS']}:{EXAMPLES}"
    environment = {"PYTHONPATH": str(target), "ROLECALL_DATA_ROOTS": roots}
    folder = tmp_path_factory.mktemp("outside")
    with running_cluster(folder, "--parameter-servers", "2", environment=environment) as started:
        yield started


def test_it_finds_centers_that_are_the_means_of_their_points(outside: Cluster, rows: Path) -> None:
    params = {"data": str(rows), "columns": ["age", "pay"], "clusters": 5, "epochs": 300, "checkpoint_every_steps": 100}
    job = outside.submit({"workload": "kmeans", "params": params})
    document = outside.wait_for(job, "succeeded")
    assert document["result"]["steps"] == 300
    assert document["progress"]["loss"] < 1.5
    archive = outside.client.get(f"/jobs/{job}/artifacts/model.zip").raise_for_status().content
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        centers = load(files.read("centers.safetensors"))["centers"]
    table = csv.read_csv(rows)
    points = np.stack([table["age"].to_numpy(), table["pay"].to_numpy()], 1)
    nearest = np.square(points[:, None] - centers).sum(2).argmin(1)
    means = np.stack([points[nearest == number].mean(0) for number in range(5)])
    np.testing.assert_allclose(centers, means, atol=1e-9)  # Lloyd's algorithm has come to rest


def test_its_parameters_are_checked_like_any_others(outside: Cluster, rows: Path) -> None:
    wrong = {"workload": "kmeans", "params": {"data": "/nowhere.csv", "colums": ["x"], "clusters": 0}}
    answer = outside.client.post("/jobs", json=wrong)
    assert answer.status_code == 422
    fields = {problem["field"] for problem in answer.json()["errors"]}
    assert {"params.colums", "params.clusters", "params.columns"} <= fields
    job = outside.submit({"workload": "kmeans", "params": {"data": "nowhere.csv", "columns": ["x"], "clusters": 2}})
    reason = outside.wait_for(job, "failed")["reason"]
    assert "nowhere.csv does not exist" in reason
    assert "Traceback" not in reason, "the message says it all"
    params = {"data": str(rows), "columns": ["age", "height"], "clusters": 2}
    document = outside.wait_for(outside.submit({"workload": "kmeans", "params": params}), "failed")
    assert "has no column height; its columns are" in document["reason"]
    assert len(document["attempts"]) == 1


def test_parameter_servers_learn_word_vectors(outside: Cluster) -> None:
    printed = (EXAMPLES.parent / "docs/adding-a-workload.md").read_text()
    own = json.loads(re.findall(r"```json\n(.*?)```", printed, re.DOTALL)[0])["params"]
    text = {"train": str(EXAMPLES.parent / own["text"]["train"]), "vocabulary": 2000, "lowercase": True}
    params = own | {"text": text, "dim": 16, "negatives": 5}
    roles = {"parameter-server": 2, "trainer": 2}
    job = outside.submit({"workload": "word2vec", "params": params, "roles": roles})
    result = outside.wait_for(job, "succeeded")["result"]
    assert result["validation_loss"] < 0.75 * 6 * np.log(2), "words whose vectors say nothing cost log 2 each"
    archive = outside.client.get(f"/jobs/{job}/artifacts/model.zip").raise_for_status().content
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        vectors = load(files.read("vectors.safetensors"))["vectors"]
        words = Tokenizer.from_str(files.read("tokenizer.json").decode())
    assert vectors.shape == (words.get_vocab_size(), 16)
