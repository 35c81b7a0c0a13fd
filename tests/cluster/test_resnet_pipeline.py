"""`resnet-pipeline` on a real cluster: the example as it is shipped, a gang that loses a stage, and Fashion-MNIST."""

import gzip
import io
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load as load_tensors
from tests.cluster.jobs import each_epoch, past_step, spans, workers
from tests.conftest import Cluster, running_cluster
from tests.pictures import write_folder
from tests.prerequisites import unavailable

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
FASHION = Path("/usr/share/datasets/fashion-mnist")

THEIRS = """
from torch import nn

def small(classes, width):
    first = nn.Sequential(nn.Conv2d(3, width, 4, stride=4), nn.BatchNorm2d(width), nn.ReLU())
    second = nn.Sequential(nn.Conv2d(width, width, 8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2))
    return nn.Sequential(first, second, nn.Linear(width, classes))
"""


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugins")
    (folder / "their_nets.py").write_text(THEIRS)
    return folder


@pytest.fixture(scope="module")
def stages(plugins: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two stages' nodes, where jobs may bring a model of their own."""
    options = ("--stages", "2", "--trainers", "0", "--parameter-servers", "0")
    roots = f"{os.environ['ROLECALL_DATA_ROOTS']}:{FASHION}"
    environment = {"ROLECALL_PLUGINS": str(plugins), "ROLECALL_DATA_ROOTS": roots}
    with running_cluster(tmp_path_factory.mktemp("stages"), *options, environment=environment) as started:
        yield started


def example() -> dict[str, Any]:
    """With paths that don't depend on where the cluster was started."""
    text = (ROOT / "examples/resnet-pipeline.json").read_text()
    return json.loads(text.replace("examples/data", str(ROOT / "examples/data")))


def unpacked(cluster: Cluster, job: str, folder: Path) -> Path:
    content = cluster.client.get(f"/jobs/{job}/artifacts/model.zip").raise_for_status().content
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        archive.extractall(folder)
    return folder


def weights(cluster: Cluster, job: str, folder: Path) -> dict[str, torch.Tensor]:
    return load_tensors((unpacked(cluster, job, folder) / "model.safetensors").read_bytes())


def test_the_example_trains_a_model_and_hands_it_over(stages: Cluster, tmp_path: Path) -> None:
    request = example()
    request["params"]["epochs"] = 1
    job = stages.submit(request)
    document = stages.wait_for(job, "succeeded", 480)
    assert document["result"]["test_accuracy"] > 0.65
    assert [worker["role"] for worker in document["attempts"][0]["workers"]] == ["master", "stage", "stage"]
    assert spans(stages, job, "stage-0") >= {"F", "I", "W", "send", "wait"}
    assert "cut before " in stages.client.get(f"/jobs/{job}/events").text
    assert each_epoch(stages, job, "validation_accuracy").keys() == {1}
    bubbles = each_epoch(stages, job, "bubble")
    assert bubbles.keys() == {1}
    assert all(0 < bubble < 1 for bubble in bubbles.values())
    asked = (
        "from PIL import Image; from model import load; m = load('.');"
        "print(m.classes[0], m.predict([Image.new('L', (28, 28))]).shape)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    folder = unpacked(stages, job, tmp_path)
    answered = subprocess.check_output([sys.executable, "-c", asked], cwd=folder, env=environment, text=True)
    assert answered == "T-shirt/top torch.Size([1, 10])\n"


def exact_job(folder: Path) -> dict[str, Any]:
    """Reproducible to the last bit, images from loader processes, checkpoints at every sixth step."""
    data = {"train": str(folder), "size": 32, "augment": ["zoom", "flip"], "loader_processes": 2}
    return {
        "workload": "resnet-pipeline",
        "roles": {"stage": 2},
        "params": {
            "data": data,
            "batch_size": 16,
            "epochs": 100,
            "micro_batches": 2,
            "max_steps": 32,
            "checkpoint_every_steps": 6,
            "checkpoint_every_s": None,
        },
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("pictures"), 150, 40)


@pytest.fixture(scope="module")
def uninterrupted(stages: Cluster, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    job = stages.submit(exact_job(folder))
    stages.wait_for(job, "succeeded", 240)
    for metric in ("validation_accuracy", "bubble"):
        assert each_epoch(stages, job, metric).keys() > {1, 2}
    _assert_steps_have_the_numbers_of_the_job(stages, job)
    return weights(stages, job, tmp_path_factory.mktemp("uninterrupted"))


def _assert_steps_have_the_numbers_of_the_job(cluster: Cluster, job: str) -> None:
    """On all workers, so that the newest step can be drawn, also after several epochs."""
    shown = cluster.client.get(f"/jobs/{job}/timeline").raise_for_status().json()
    numbers = {one["rank"]: [number for number, _, _ in one["steps"]] for one in shown["workers"]}
    assert numbers == {rank: list(range(1, 33)) for rank in range(3)}
    picture = cluster.client.get(f"/jobs/{job}/timeline", params={"format": "schedule"}).raise_for_status().text
    assert f"{job}, step 32" in picture


@pytest.mark.parametrize("victim", ["stage-0", "stage-1"])
def test_a_killed_stage_costs_an_attempt_and_not_the_result(
    stages: Cluster, folder: Path, uninterrupted: dict[str, torch.Tensor], tmp_path: Path, victim: str
) -> None:
    job = stages.submit(exact_job(folder))
    gang = workers(stages.until(job, past_step(7), 240))
    os.kill(gang[victim]["pid"], signal.SIGKILL)
    document = stages.wait_for(job, "succeeded", 240)
    assert f"{victim} on {gang[victim]['node']}: killed by SIGKILL" in document["attempts"][0]["cause"]
    assert "resumed from the checkpoint at step" in stages.client.get(f"/jobs/{job}/events").text
    torch.testing.assert_close(weights(stages, job, tmp_path), uninterrupted, rtol=0, atol=0)


def test_a_model_of_the_jobs_own(stages: Cluster, plugins: Path, folder: Path, tmp_path: Path) -> None:
    """It has dropout; the same seed and the same cuts give the same bits."""
    request = exact_job(folder)
    request["params"] |= {"model": {"builder": "their_nets:small", "arguments": {"width": 8}}, "cuts": ["1"]}
    request["params"] |= {"max_steps": 40, "checkpoint_every_steps": 15}
    jobs = [stages.submit(request) for _ in range(2)]
    for job in jobs:
        stages.wait_for(job, "succeeded", 240)
    first, second = (weights(stages, job, tmp_path) for job in jobs)
    assert first["2.weight"].shape == (3, 8)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    answered = subprocess.check_output(
        [sys.executable, "-c", "from model import load; print(load('.').classes)"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(plugins)},
        text=True,
    )
    assert answered == "['checks', 'columns', 'rows']\n"


def test_a_paused_job_goes_on_where_it_was(stages: Cluster, folder: Path) -> None:
    request = exact_job(folder)
    request["params"]["checkpoint_every_steps"] = None
    job = stages.submit(request)
    stages.until(job, past_step(5), 240)
    stages.client.post(f"/jobs/{job}/pause")
    stages.wait_for(job, "paused", 30)
    stages.client.post(f"/jobs/{job}/resume")
    document = stages.wait_for(job, "succeeded", 240)
    assert document["result"]["steps"] == 32
    assert "resumed from the checkpoint at step" in stages.client.get(f"/jobs/{job}/events").text


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"train": "nowhere/pictures"}, "nowhere/pictures does not exist on this node"),
        ({"train": {"images": "{own}", "labels": "{own}"}}, "is not an IDX file"),
    ],
)
def test_bad_images_fail_at_once_and_for_good(stages: Cluster, data: dict[str, Any], said: str) -> None:
    request = example()
    request["params"]["data"] = json.loads(json.dumps(data).replace("{own}", __file__))
    document = stages.wait_for(stages.submit(request), "failed", 15)
    assert said in document["reason"]
    assert len(document["attempts"]) == 1


@pytest.mark.parametrize(
    ("changes", "roles", "said"),
    [
        ({"micro_batches": 3}, {"stage": 2}, "nearest valid: 2 or 4"),
        ({"cuts": ["layer9.0"]}, {"stage": 2}, "valid: layer1.0"),
        ({}, {"stage": 11}, "valid: 1 times 2 to 10"),
    ],
)
def test_what_is_not_legal_is_refused(
    stages: Cluster, changes: dict[str, Any], roles: dict[str, int], said: str
) -> None:
    request = example() | {"roles": roles}
    request["params"] |= changes
    answer = stages.client.post("/jobs", json=request)
    assert answer.status_code == 422
    assert said in answer.text


def test_fashion_mnist_is_learned(stages: Cluster, tmp_path: Path) -> None:
    """By one epoch over an eighth of its images; the whole of it takes eight times as long."""
    if not FASHION.exists():
        unavailable(f"{FASHION} is not there (apt-get install dataset-fashion-mnist)")
    request = example()
    for split, name, count in (("train", "train", 7_500), ("test", "t10k", 1_000)):
        files = {
            "images": (f"{name}-images-idx3-ubyte.gz", 16, 28 * 28),
            "labels": (f"{name}-labels-idx1-ubyte.gz", 8, 1),
        }
        request["params"]["data"][split] = {
            kind: str(first_rows(FASHION / file, tmp_path / file, count, head, row))
            for kind, (file, head, row) in files.items()
        }
    request["params"] |= {"epochs": 1, "batch_size": 128, "micro_batches": 4}
    result = stages.wait_for(stages.submit(request), "succeeded", 480)["result"]
    assert result["test_accuracy"] >= 0.8


def first_rows(source: Path, target: Path, count: int, head: int, row: int) -> Path:
    """The first rows of an IDX file, of `row` bytes each behind a head of `head` bytes, as a file of their own."""
    with gzip.open(source) as file:
        magic, _, rest = file.read(4), file.read(4), file.read(head - 8)
        target.write_bytes(gzip.compress(magic + count.to_bytes(4, "big") + rest + file.read(count * row), 1))
    return target
