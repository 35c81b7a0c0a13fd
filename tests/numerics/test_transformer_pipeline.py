"""`transformer-pipeline` by a gang of processes gives what one process gives."""

import importlib.util
import json
import random
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load as load_tensors
from tests.numerics.transformer_pipeline_reference import Reference, case, legal_cases, train_alone, try_cases

from rolecall.kit.schedules import SCHEDULES
from rolecall.spec.plan import CheckpointManifest
from rolecall.spec.role import Role
from rolecall.testing.gang import GangResult, run_gang
from rolecall.workloads.transformer_pipeline.params import Params

GOLDEN = [2.628746757, 2.581284413, 2.538816789, 2.525525731]
"""Losses of steps 1, 4, 7 and 10 of `job`: they change only if the model, its first weights or the data's order do."""
TOLERANCE = {"float64": 1e-10, "float32": 1e-5}


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 20,000 characters with something to learn in them."""
    draw = random.Random(5)
    words = ["".join(draw.choices("abcdefghij", k=draw.randint(2, 6))) for _ in range(60)]
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(" ".join(draw.choices(words, k=8)) + ".\n" for _ in range(500)))
    return path


def job(text: Path, **changes: Any) -> dict[str, Any]:
    return {
        "text": {"train": str(text), "tokens": "character"},
        "context": 16,
        "layers": 5,
        "dim": 16,
        "heads": 2,
        "hidden": 32,
        "batch_size": 8,
        "epochs": 100,
        "seed": 3,
        "precision": "float64",
        "optimizer": {"name": "adamw", "lr": 0.003},
        "lr_schedule": {"shape": "cosine", "warmup_steps": 5},
        "max_grad_norm": 0.5,
        "checkpoint_every_s": None,
        "sample": {"tokens": 5},
        **changes,
    }


def weights(result: GangResult) -> dict[str, torch.Tensor]:
    with zipfile.ZipFile(result.artifact("model.zip")) as archive:
        parts = [load_tensors(archive.read(name)) for name in archive.namelist() if name.endswith(".safetensors")]
    return {name: weight for part in parts for name, weight in part.items()}


def assert_same(result: GangResult, alone: Reference, tolerance: float) -> None:
    for losses in result.losses.values():
        assert losses == pytest.approx(alone.losses, rel=0, abs=tolerance)
    torch.testing.assert_close(weights(result), alone.weights, rtol=0, atol=tolerance)
    assert result.result["validation_loss"] == pytest.approx(alone.validation_loss, rel=0, abs=tolerance)


def exported(result: GangResult, folder: Path) -> ModuleType:
    """The code in `model.zip`, unpacked into `folder`."""
    with zipfile.ZipFile(result.artifact("model.zip")) as archive:
        archive.extractall(folder)
    spec = importlib.util.spec_from_file_location("exported_model", folder / "model.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_two_stages_train_as_one_process_does_and_leave_a_model(text: Path, tmp_path: Path) -> None:
    params = job(text, max_steps=10)
    result = run_gang("transformer-pipeline", params, {Role.STAGE: 2}, tmp_path)
    alone = train_alone(Params.model_validate(params), tmp_path / "cache")
    assert_same(result, alone, 1e-10)
    assert alone.losses[::3] == pytest.approx(GOLDEN, rel=0, abs=1e-6)
    model = exported(result, tmp_path / "model").load(tmp_path / "model")
    assert model.generate("\n", tokens=5, seed=3) + "\n" == result.artifact("sample.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("replicas", "precision"), [(1, "float64"), (2, "float32")])
def test_every_legal_schedule_gives_the_single_process_gradients(
    tmp_path: Path, ranks: int, replicas: int, precision: str
) -> None:
    """One replica shows the schedule to the last digits; with two, their gradients are averaged as well."""
    cases = list(legal_cases(ranks, replicas, precision))
    outcomes = try_cases(cases, ranks * replicas, tmp_path)
    assert not [one for one in outcomes if max(one.loss, one.gradient) > TOLERANCE[precision]]


@pytest.mark.slow
def test_activation_checkpointing_changes_no_gradient(tmp_path: Path) -> None:
    names = [name for name, schedule in SCHEDULES.items() if schedule.checkpointing]
    cases = [case(name, 1, 4, activation_checkpointing=True, positions="learned") for name in names]
    assert max(max(o.loss, o.gradient) for o in try_cases(cases, 2, tmp_path)) <= 1e-10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stages", "changes"),
    [
        (4, {"schedule": "DualPipeV", "layers": 9, "micro_batches": 8, "positions": "learned"}),
        (4, {"schedule": "Interleaved1F1B", "replicas": 2, "micro_batches": 2, "max_grad_norm": None}),
        (2, {"split": "tracer", "schedule": "ZBVZeroBubble"}),
    ],
    ids=["four ranks in a V", "two replicas", "traced"],
)
def test_float64_parity_over_60_steps(text: Path, tmp_path: Path, stages: int, changes: dict[str, Any]) -> None:
    params = job(text, max_steps=60, **changes)
    result = run_gang("transformer-pipeline", params, {Role.STAGE: stages}, tmp_path)
    assert_same(result, train_alone(Params.model_validate(params), tmp_path / "cache"), 1e-10)


_THEIRS = """
import torch
from torch import nn

class Averaging(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.mix = nn.Linear(dim, dim)

    def forward(self, x):
        seen = torch.ones(x.shape[1], x.shape[1], dtype=x.dtype).tril()
        return x + self.mix(seen / seen.sum(1, keepdim=True) @ x)

def averaging(dim, context):
    return Averaging(dim)
"""


@pytest.mark.slow
def test_layers_of_the_jobs_own_train_as_in_one_process(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "their_averaging.py").write_text(_THEIRS)
    monkeypatch.setenv("ROLECALL_PLUGINS", str(tmp_path))
    monkeypatch.setattr(sys, "path", sys.path[:])
    params = job(text, max_steps=20, model={"builder": "their_averaging:averaging"}, positions="learned")
    del params["heads"], params["hidden"]
    allowed = {"ROLECALL_PLUGINS": str(tmp_path)}
    result = run_gang("transformer-pipeline", params, {Role.STAGE: 2}, tmp_path / "gang", environment=allowed)
    assert_same(result, train_alone(Params.model_validate(params), tmp_path / "cache"), 1e-10)
    model = exported(result, tmp_path / "model").load(tmp_path / "model")
    assert type(model.decoder.layers["0"]).__name__ == "Averaging"


@pytest.mark.slow
def test_float32_parity_over_30_steps(text: Path, tmp_path: Path) -> None:
    params = job(text, max_steps=30, precision="float32", optimizer={"name": "sgd", "lr": 0.1, "momentum": 0.9})
    result = run_gang("transformer-pipeline", params, {Role.STAGE: 2}, tmp_path)
    assert_same(result, train_alone(Params.model_validate(params), tmp_path / "cache"), 1e-5)


@pytest.mark.slow
def test_a_checkpoint_continues_to_the_uninterrupted_weights(text: Path, tmp_path: Path) -> None:
    params = job(text, max_steps=30, precision="float32", dropout=0.2, replicas=2, checkpoint_every_steps=12)
    whole = run_gang("transformer-pipeline", params, {Role.STAGE: 4}, tmp_path / "whole")
    manifest = CheckpointManifest.model_validate(json.loads((tmp_path / "whole/checkpoint-000012.json").read_text()))
    (tmp_path / "resumed").mkdir()
    (tmp_path / "resumed" / "blobs").symlink_to(tmp_path / "whole" / "blobs")
    expected, sample = weights(whole), whole.artifact("sample.txt").read_text()
    resumed = run_gang("transformer-pipeline", params, {Role.STAGE: 4}, tmp_path / "resumed", resume_from=manifest)
    assert resumed.losses["stage-0"] == whole.losses["stage-0"][12:]
    torch.testing.assert_close(weights(resumed), expected, rtol=0, atol=0)
    assert resumed.artifact("sample.txt").read_text() == sample
