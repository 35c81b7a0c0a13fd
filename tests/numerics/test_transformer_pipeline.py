"""`transformer-pipeline` by a gang of processes gives what one process gives."""

import hashlib
import importlib.util
import json
import random
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from tests.numerics.transformer_pipeline_reference import (
    Reference,
    case,
    legal_cases,
    train_alone,
    try_cases,
    whole_model,
)

from rolecall.kit.csv_schedules import format_schedule
from rolecall.kit.orders import planned_order
from rolecall.kit.schedules import SCHEDULES, ScheduleName
from rolecall.spec.plan import CheckpointManifest, CheckpointPart
from rolecall.spec.role import Role
from rolecall.testing.gang import GangResult, run_gang
from rolecall.workloads.transformer_pipeline.params import Params, SplitMethod

GOLDEN = [2.628746757, 2.581284413, 2.538816789, 2.525525731]
"""Losses of steps 1, 4, 7 and 10 of `job`: they change only if the model, its first weights or the data's order do."""
TUTORIALS = Path(__file__).parents[2] / "examples" / "tutorials"
TRANSFORMER = {
    "builds": "model",
    "builder": "tutorial_transformer:transformer",
    "arguments": {"dim": 16, "layers": 3, "heads": 2, "dropout": 0.0, "causal": True},
}
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
    # There is one epoch, so the bubble of its steps is that of all steps.
    assert [one["bubble"] for one in reported(result) if "bubble" in one] == [result.result["bubble_measured"]]
    assert 0 < result.result["bubble_simulated"] < 1
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
    assert not [one for one in outcomes if max(one.loss, one.gradient) > TOLERANCE[precision] or not one.as_planned]


@pytest.mark.slow
def test_every_way_to_name_a_cut_gives_the_single_process_gradients(tmp_path: Path) -> None:
    """Computed cuts, the beginning and the end of a layer, and stages with only the embedding or the head."""
    begin, end = ["layers.3"], [{"layer": "layers.2", "at": "end"}]
    cases = [
        case("GPipe", 1, 4, layers=6, split=split, cuts=cuts)
        for split in get_args(SplitMethod)
        for cuts in (None, begin, end)
    ]
    edges = ["layers.0", "layers.4", {"layer": "layers.5", "at": "end"}]
    cases.append(case("Interleaved1F1B", 1, 4, layers=6, cuts=edges, activation_checkpointing=True))
    outcomes = try_cases(cases, 2, tmp_path)
    assert [one for one in outcomes if max(one.loss, one.gradient) > 1e-10] == []


@pytest.mark.slow
def test_schedules_of_the_jobs_own_give_the_single_process_gradients(tmp_path: Path) -> None:
    """The orders of torch's schedules as rows and as a file, and one that no schedule of torch has."""
    names: list[ScheduleName] = ["1F1B", "Interleaved1F1B", "ZBVZeroBubble", "DualPipeV"]
    orders = [planned_order(name, 2, 4, SCHEDULES[name].default_virtual_stages) for name in names]
    rows = [format_schedule(order).splitlines() for order in orders]
    rows.append(["0F0,0F1,0F2,0F3,0B1,0B0,0B3,0B2", "1F0,1F1,1B1,1B0,1F2,1F3,1I3,1W3,1B2"])
    file = tmp_path / "own.csv"
    file.write_text("\n".join(rows[0]))
    cases = [case(own, 1, 4) for own in ({"csv": str(file)}, *({"rows": one} for one in rows))]
    outcomes = try_cases(cases, 2, tmp_path)
    assert [one for one in outcomes if max(one.loss, one.gradient) > 1e-10] == []


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
def test_float64_parity_over_30_steps(text: Path, tmp_path: Path, stages: int, changes: dict[str, Any]) -> None:
    params = job(text, max_steps=30, **changes)
    result = run_gang("transformer-pipeline", params, {Role.STAGE: stages}, tmp_path)
    assert_same(result, train_alone(Params.model_validate(params), tmp_path / "cache"), 1e-10)


_THEIRS = '''
import torch
from torch import nn
from torch.distributed.pipelining import pipe_split

class Averaging(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.mix = nn.Linear(dim, dim)

    def forward(self, x):
        seen = torch.ones(x.shape[1], x.shape[1], dtype=x.dtype).tril()
        return x + self.mix(seen / seen.sum(1, keepdim=True) @ x)

def averaging(dim, context):
    return Averaging(dim)

class SequenceFirst(Averaging):
    """Takes and returns transposed views, so that neither its outputs nor its inputs' gradients are contiguous."""

    def forward(self, x):
        x = x.transpose(0, 1).contiguous()
        return self.mix(x.cumsum(0) / len(x)).transpose(0, 1)

def sequence_first(dim, context):
    return SequenceFirst(dim)

class Chain(nn.Module):
    """Linear layers, whose outputs are views."""

    def __init__(self, vocabulary):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 8)
        self.layers = nn.ModuleDict({str(index): nn.Linear(8, 8) for index in range(3)})
        self.output = nn.Linear(8, vocabulary)

    def forward(self, x):
        x = x if self.embedding is None else self.embedding(x)
        for layer in self.layers.values():
            x = layer(x)
        return x if self.output is None else self.output(x)

def chain(vocabulary, context):
    return Chain(vocabulary)

class Marked(Chain):
    def forward(self, x):
        x = self.layers["0"](self.embedding(x))
        pipe_split()
        return self.output(self.layers["2"](self.layers["1"](x)))

def marked(vocabulary, context):
    return Marked(vocabulary)
'''


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
def test_sequence_first_layers_give_the_single_process_gradients(tmp_path: Path) -> None:
    (tmp_path / "their_transposing.py").write_text(_THEIRS)
    model = {"builder": "their_transposing:sequence_first"}
    cases = [
        case(schedule, 1, 4, model=model, split=split)
        for schedule in ("1F1B", "InterleavedZeroBubble", "ZBVZeroBubble")
        for split in get_args(SplitMethod)
    ]
    for one in cases:
        del one["heads"], one["hidden"]
    outcomes = try_cases(cases, 2, tmp_path, plugins=str(tmp_path))
    assert [one for one in outcomes if max(one.loss, one.gradient) > 1e-10] == []


@pytest.mark.slow
def test_stages_that_return_views_train_with_split_backward_passes(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "their_chain.py").write_text(_THEIRS)
    monkeypatch.setenv("ROLECALL_PLUGINS", str(tmp_path))
    monkeypatch.setattr(sys, "path", sys.path[:])
    model = {"builds": "model", "builder": "their_chain:chain"}
    params = job(text, max_steps=3, schedule="ZBVZeroBubble", model=model)
    for name in ("layers", "dim", "heads", "hidden"):
        del params[name]
    result = run_gang("transformer-pipeline", params, {Role.STAGE: 2}, tmp_path / "gang")
    assert_same(result, train_alone(Params.model_validate(params), tmp_path / "cache"), 1e-10)


@pytest.mark.slow
def test_a_model_that_marks_its_cuts_trains_as_in_one_process(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "their_marked.py").write_text(_THEIRS)
    monkeypatch.setenv("ROLECALL_PLUGINS", str(tmp_path))
    monkeypatch.setattr(sys, "path", sys.path[:])
    model = {"builds": "model", "builder": "their_marked:marked"}
    params = job(text, max_steps=3, split="tracer", cuts="pipe_split", model=model)
    for name in ("layers", "dim", "heads", "hidden"):
        del params[name]
    result = run_gang("transformer-pipeline", params, {Role.STAGE: 2}, tmp_path / "gang")
    assert_same(result, train_alone(Params.model_validate(params), tmp_path / "cache"), 1e-10)
    found = exported(result, tmp_path / "model").load(tmp_path / "model")
    assert found.generate("\n", tokens=5, seed=3) + "\n" == result.artifact("sample.txt").read_text()


def reported(result: GangResult) -> list[dict[str, float]]:
    """The metrics of the steps that the first stage reported."""
    lines = (result.folder / "work/job/1/0/progress.jsonl").read_text().splitlines()
    steps = [line for line in map(json.loads, lines) if line["kind"] in ("first_step", "step")]
    return [line["metrics"] for line in steps if "metrics" in line]


@pytest.mark.slow
def test_a_whole_model_of_the_jobs_own_trains_as_in_one_process_whatever_its_cuts(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tutorial's model in its causal form; the checkpoint is resumed with more stages than wrote it."""
    monkeypatch.setenv("ROLECALL_PLUGINS", str(TUTORIALS))
    monkeypatch.setattr(sys, "path", sys.path[:])
    params = job(text, max_steps=12, checkpoint_every_steps=6, cuts=["layers.1"], model=TRANSFORMER)
    for name in ("layers", "dim", "heads", "hidden"):
        del params[name]
    result = run_gang("transformer-pipeline", params, {Role.STAGE: 2}, tmp_path / "gang")
    alone = train_alone(Params.model_validate(params), tmp_path / "cache")
    assert_same(result, alone, 1e-10)
    model = exported(result, tmp_path / "model").load(tmp_path / "model")
    assert type(model.decoder).__name__ == "Transformer"
    assert model.generate("\n", tokens=5, seed=3) + "\n" == result.artifact("sample.txt").read_text()

    first = reported(result)[0]
    each = [first[f"micro_batch_{number}_loss"] for number in range(4)]
    assert sum(each) / 4 == pytest.approx(first["loss"], rel=0, abs=1e-10)
    assert [first["micro_batch_loss_min"], first["micro_batch_loss_max"]] == [min(each), max(each)]

    params |= {"cuts": ["layers.0", {"layer": "layers.2", "at": "end"}]}
    resumed = resume(result, params, {Role.STAGE: 3}, 6, tmp_path / "resumed")
    assert resumed.losses["stage-0"] == pytest.approx(alone.losses[6:], rel=0, abs=1e-10)
    torch.testing.assert_close(weights(resumed), alone.weights, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_float32_parity_over_20_steps(text: Path, tmp_path: Path) -> None:
    params = job(text, max_steps=20, precision="float32", optimizer={"name": "sgd", "lr": 0.1, "momentum": 0.9})
    result = run_gang("transformer-pipeline", params, {Role.STAGE: 2}, tmp_path)
    assert_same(result, train_alone(Params.model_validate(params), tmp_path / "cache"), 1e-5)


def resume(
    whole: GangResult,
    params: dict[str, Any],
    roles: dict[Role, int],
    step: int,
    folder: Path,
    *,
    convert: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]] = dict,
) -> GangResult:
    """Another gang that continues from a checkpoint of `whole`, with a copy of its files, whose parts are converted."""
    manifest = CheckpointManifest.model_validate_json((whole.folder / f"checkpoint-{step:06d}.json").read_text())
    shutil.copytree(whole.folder / "blobs", folder / "blobs")
    parts: list[CheckpointPart] = []
    for part in manifest.parts:
        path = folder / "blobs" / "job" / part.blob
        path.write_bytes(content := save_tensors(convert(load_tensors(path.read_bytes()))))
        hashed = hashlib.sha256(content).hexdigest()
        parts.append(part.model_copy(update={"size": len(content), "sha256": hashed}))
    converted = manifest.model_copy(update={"parts": tuple(parts)})
    return run_gang("transformer-pipeline", params, roles, folder, resume_from=converted)


@pytest.mark.slow
def test_a_checkpoint_continues_to_the_uninterrupted_weights(text: Path, tmp_path: Path) -> None:
    """Also one of release 0.1, whose optimizer state is by index: matrices first, each kind in the model's order."""
    params = job(text, max_steps=14, precision="float32", dropout=0.2, replicas=2, checkpoint_every_steps=6)
    names = [name for name, _ in whole_model(Params.model_validate(params), 5).named_parameters()]

    def indexed(part: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        held = [name for name in names if f"weights/{name}" in part]
        order = sorted(held, key=lambda name: part[f"weights/{name}"].ndim == 1)
        indices = {f"state/{name}": f"optimizer/{index}" for index, name in enumerate(order)}
        split = {key: key.rpartition("/") for key in part}
        return {indices.get(split[key][0], split[key][0]) + "/" + split[key][2]: part[key] for key in part}

    whole = run_gang("transformer-pipeline", params, {Role.STAGE: 4}, tmp_path / "whole")
    resumed = resume(whole, params, {Role.STAGE: 4}, 6, tmp_path / "resumed")
    upgraded = resume(whole, params, {Role.STAGE: 4}, 6, tmp_path / "upgraded", convert=indexed)
    for later in (resumed, upgraded):
        assert later.losses["stage-0"] == whole.losses["stage-0"][6:]
        torch.testing.assert_close(weights(later), weights(whole), rtol=0, atol=0)
        assert later.artifact("sample.txt").read_text() == whole.artifact("sample.txt").read_text()


@pytest.mark.slow
def test_a_pipeline_learns_synthetic_text(tmp_path: Path) -> None:
    source = {"tokens": 8200, "vocabulary": 12, "source": "markov", "test": 200}
    params = job(tmp_path, max_steps=24, max_grad_norm=None, optimizer={"name": "adamw", "lr": 0.02})
    params["text"] = {"synthetic": source, "validation": 0.0}
    result = run_gang("transformer-pipeline", params, {Role.STAGE: 2}, tmp_path)
    assert result.result["test_perplexity"] < 6  # at best 4; without learning 12
    sample = result.artifact("sample.txt").read_text().split()
    assert len(sample) == 6
    assert set(sample) <= {str(number) for number in range(12)}
    with zipfile.ZipFile(result.artifact("model.zip")) as archive:
        assert "numbers from 0 to 11" in archive.read("README.md").decode()
