# pyright: standard
"""`resnet-pipeline` by a gang of processes gives what one process gives."""

import json
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load as load_tensors
from tests.numerics.resnet_pipeline_reference import Reference, scores, train_alone
from tests.pictures import write_folder, write_idx

from rolecall.spec.plan import CheckpointManifest
from rolecall.spec.role import Role
from rolecall.testing.gang import GangResult, run_gang
from rolecall.workloads.resnet_pipeline.params import Params

MOMENTUM = {"name": "sgd", "lr": 0.02, "momentum": 0.9, "weight_decay": 1e-4}
Alone = Callable[[dict[str, Any]], Reference]
CUTS = {2: ["layer3.0"], 3: ["layer2.0", "layer3.1"]}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two batches of 8 and a rest."""
    return str(write_folder(tmp_path_factory.mktemp("pictures"), 20, 64))


@pytest.fixture(scope="session")
def alone() -> Alone:
    """The result of one process; gangs that differ only in their stages share it."""
    answers = cache(lambda params: train_alone(Params.model_validate_json(params)))
    return lambda params: answers(json.dumps(params | {"cuts": None, "protocol": "1f1b"}, sort_keys=True))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As the gangs' workers have."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def job(folder: str, **changes: Any) -> dict[str, Any]:
    data = {"train": folder, "size": 64, "validation": 0.0, "loader_processes": 0} | changes.pop("data", {})
    return {
        "data": data,
        "batch_size": 8,
        "epochs": 100,
        "seed": 3,
        "optimizer": MOMENTUM,
        "checkpoint_every_s": None,
        **changes,
    }


def run(params: dict[str, Any], stages: int, place: Path, **options: Any) -> GangResult:
    return run_gang("resnet-pipeline", params, {Role.MASTER: 1, Role.STAGE: stages}, place, **options)


def final_state(result: GangResult) -> dict[str, torch.Tensor]:
    """Weights and running statistics, by torchvision's names."""
    with zipfile.ZipFile(result.artifact("model.zip")) as archive:
        return load_tensors(archive.read("model.safetensors"))


def losses(result: GangResult) -> torch.Tensor:
    return torch.tensor(result.losses["master-0"], dtype=torch.float64)


def bubbles(result: GangResult) -> list[float]:
    """As the driver reported them after each epoch."""
    lines = (result.folder / "work/job/1/0/progress.jsonl").read_text().splitlines()
    return [
        metrics["bubble"] for metrics in (json.loads(line).get("metrics", {}) for line in lines) if "bubble" in metrics
    ]


def assert_same(result: GangResult, alone: Reference, tolerance: float) -> None:
    expected = torch.tensor(alone.losses, dtype=torch.float64)
    torch.testing.assert_close(losses(result), expected, rtol=0, atol=tolerance)
    torch.testing.assert_close(final_state(result), alone.state, rtol=0, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("micro_batches", [1, 4, 8])
def test_float64_parity_over_steps_of_two_epochs(
    folder: str, alone: Alone, tmp_path: Path, micro_batches: int, stages: int
) -> None:
    """Losses, weights and BatchNorm's statistics, at 64 × 64."""
    params = job(folder, precision="float64", micro_batches=micro_batches, max_steps=3, cuts=CUTS[stages])
    assert_same(run(params, stages, tmp_path), alone(params), 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("case", [("1f1b", 2, 1), ("1f1b", 3, 8), ("tutorial", 2, 4)])
def test_the_first_gradients_in_float32(folder: str, alone: Alone, tmp_path: Path, case: tuple[str, int, int]) -> None:
    """With a learning rate of 1 the first step takes the gradients themselves off the weights."""
    protocol, stages, micro_batches = case
    params = job(
        folder,
        protocol=protocol,
        micro_batches=micro_batches,
        max_steps=1,
        optimizer={"name": "sgd", "lr": 1.0},
        cuts=CUTS[stages],
    )
    assert_same(run(params, stages, tmp_path), alone(params), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("stages", [2, 3])
def test_the_tutorials_protocol_keeps_parity(folder: str, alone: Alone, tmp_path: Path, stages: int) -> None:
    params = job(folder, protocol="tutorial", precision="float64", micro_batches=4, max_steps=3)
    assert_same(run(params, stages, tmp_path), alone(params), 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["1f1b", "tutorial"])
def test_squared_errors_and_scores_of_synthetic_images(alone: Alone, tmp_path: Path, protocol: str) -> None:
    """The tutorial's loss and random images; the validation images don't fill their last batch or micro-batch."""
    data = {"train": None, "synthetic": {"images": 40, "classes": 5}, "size": 32, "validation": 0.3}
    params = job("", data=data, precision="float64", norm="group", loss="mse", micro_batches=4, max_steps=3)
    result = run(params | {"protocol": protocol}, 2, tmp_path)
    expected = alone(params)
    assert_same(result, expected, 1e-10)
    for name, score in scores(Params.model_validate(params), expected.state).items():
        assert result.result[name] == pytest.approx(score, rel=1e-6), name


@pytest.mark.slow
def test_more_micro_batches_than_rpc_has_threads_by_default(folder: str, alone: Alone, tmp_path: Path) -> None:
    """The tutorial's protocol holds a thread for each of them at every stage: with too few all would hang."""
    data = {"size": 32}
    params = job(folder, data=data, precision="float64", norm="group", batch_size=18, micro_batches=18, max_steps=1)
    assert_same(run(params | {"protocol": "tutorial"}, 2, tmp_path, timeout_s=90), alone(params), 1e-10)


@pytest.mark.slow
def test_replicas_average_gradients_and_statistics(folder: str, alone: Alone, tmp_path: Path) -> None:
    params = job(folder, precision="float64", replicas=2, micro_batches=2, max_steps=3, label_smoothing=0.1)
    result = run(params, 4, tmp_path)
    assert_same(result, alone(params), 1e-10)
    assert len(bubbles(result)) == 2
    assert all(0 < bubble < 1 for bubble in bubbles(result))


@pytest.mark.slow
def test_group_norm_does_not_depend_on_replicas_and_micro_batches(folder: str, alone: Alone, tmp_path: Path) -> None:
    params = job(folder, precision="float64", norm="group", max_steps=2)
    whole = alone(params | {"micro_batches": 1})
    assert_same(run(params | {"replicas": 2, "micro_batches": 4}, 4, tmp_path), whole, 1e-10)


@pytest.mark.slow
def test_a_checkpoint_continues_to_the_uninterrupted_weights(tmp_path: Path) -> None:
    """Bit for bit, and with other cuts than those it was written with."""
    idx = write_idx(tmp_path / "idx", 60, 40)
    data = {"train": idx, "size": 32, "validation": 0.2, "augment": ["shift", "flip"]}
    params = job(
        "", data=data, batch_size=12, micro_batches=3, max_steps=9, checkpoint_every_steps=5, cuts=["layer4.0"]
    )
    whole = run(params, 2, tmp_path / "whole")
    manifest = CheckpointManifest.model_validate(json.loads((tmp_path / "whole/checkpoint-000005.json").read_text()))
    (tmp_path / "resumed").mkdir()
    (tmp_path / "resumed" / "blobs").symlink_to(tmp_path / "whole" / "blobs")
    expected = final_state(whole)
    resumed = run(params | {"cuts": ["layer3.0"]}, 2, tmp_path / "resumed", resume_from=manifest)
    torch.testing.assert_close(losses(resumed), losses(whole)[5:], rtol=0, atol=0)
    torch.testing.assert_close(final_state(resumed), expected, rtol=0, atol=0)


@pytest.mark.slow
def test_the_tutorials_protocol_resumes_a_checkpoint(alone: Alone, tmp_path: Path) -> None:
    """Without momentum, which its checkpoints don't contain."""
    data = {"train": None, "synthetic": {"images": 24, "classes": 5}, "size": 32}
    optimizer = {"name": "sgd", "lr": 0.002}
    params = job("", data=data, precision="float64", norm="group", loss="mse", optimizer=optimizer, max_steps=4)
    whole = alone(params)
    params |= {"protocol": "tutorial", "cuts": ["layer3.0"], "checkpoint_every_steps": 2}
    run(params, 2, tmp_path / "first")
    manifest = CheckpointManifest.model_validate(json.loads((tmp_path / "first/checkpoint-000002.json").read_text()))
    (tmp_path / "resumed").mkdir()
    (tmp_path / "resumed" / "blobs").symlink_to(tmp_path / "first" / "blobs")
    resumed = run(params | {"cuts": ["layer2.0"]}, 2, tmp_path / "resumed", resume_from=manifest)
    torch.testing.assert_close(losses(resumed), torch.tensor(whole.losses[2:], dtype=torch.float64), rtol=0, atol=1e-10)
    torch.testing.assert_close(final_state(resumed), whole.state, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_a_small_pipeline_learns(tmp_path: Path) -> None:
    """Measured cuts, three classes that differ by their stripes."""
    idx = write_idx(tmp_path / "idx", 120, 32)
    data = {"train": idx, "size": 32, "validation": 0.2}
    params = job("", data=data, batch_size=32, micro_batches=2, epochs=3, optimizer={"name": "adam", "lr": 0.001})
    result = run(params, 2, tmp_path)
    assert len(result.losses["master-0"]) == result.result["steps"]
    assert result.losses["master-0"][-1] < 0.5 < result.losses["master-0"][0]
    assert result.result["validation_accuracy"] > 0.5
    assert len(bubbles(result)) == 3
    assert all(0 < bubble < 1 for bubble in bubbles(result))
