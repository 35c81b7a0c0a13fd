# pyright: standard
"""`rnn-lm` by a gang of processes gives what one process gives."""

import json
import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load as load_tensors
from tests.numerics.rnn_lm_reference import Reference, train_alone

from rolecall.spec.plan import CheckpointManifest
from rolecall.spec.role import Role
from rolecall.testing.gang import GangResult, run_gang
from rolecall.workloads.rnn_lm.params import Params

ROOT = Path(__file__).parents[2]
STEPS_PER_EPOCH = 105
STEPS = STEPS_PER_EPOCH + 15
SGD = {"name": "sgd", "lr": 0.5, "momentum": 0.5, "weight_decay": 1e-4}
ADAM = {"name": "adam", "lr": 0.005}
ADAMW = {"name": "adamw", "lr": 0.005, "weight_decay": 0.01}
TUTORIAL = {"protocol": "tutorial", "max_grad_norm": None}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As each worker of the gang has; on tensors this small a second thread would only wait."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def prose(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of 500 lines, about 6,000 tokens, in which each word says something about the next."""
    generator = torch.Generator().manual_seed(1)
    path = tmp_path_factory.mktemp("text") / "prose.txt"
    word, lines = 0, []
    for _ in range(500):
        words = []
        for _ in range(11):
            word = (3 * word + int(torch.randint(4, (), generator=generator))) % 97
            words.append(f"w{word}")
        lines.append(" ".join(words) + ".\n")
    path.write_text("".join(lines))
    return path


def job(prose: Path, **changes: Any) -> dict[str, Any]:
    return {
        "text": {"train": str(prose), "validation": 0.1, "vocabulary": 90},
        "embedding_dim": 12,
        "hidden_dim": 16,
        "layers": 2,
        "dropout": 0.0,
        "batch_size": 8,
        "bptt": 7,
        "epochs": 1000,
        "seed": 3,
        "max_grad_norm": 0.3,
        "checkpoint_every_s": None,
        "sample": {"tokens": 20},
        **changes,
    }


def roles(servers: int, trainers: int) -> dict[Role, int]:
    return {Role.PARAMETER_SERVER: servers, Role.TRAINER: trainers}


def global_losses(result: GangResult, streams: int) -> torch.Tensor:
    """Each trainer's mean, weighed by its share of the streams."""
    trainers = len(result.losses)
    bounds = torch.tensor([streams * rank // trainers for rank in range(trainers + 1)], dtype=torch.float64)
    losses = torch.tensor(list(result.losses.values()), dtype=torch.float64)
    return (losses * bounds.diff().unsqueeze(1)).sum(0) / streams


def final_weights(result: GangResult) -> dict[str, torch.Tensor]:
    with zipfile.ZipFile(result.artifact("model.zip")) as archive:
        return load_tensors(archive.read("model.safetensors"))


def manifest_of(result: GangResult, step: int) -> CheckpointManifest:
    return CheckpointManifest.model_validate_json((result.folder / f"checkpoint-{step:06d}.json").read_text())


def resume(whole: GangResult, params: dict[str, Any], counts: dict[Role, int], folder: Path, step: int) -> GangResult:
    """A gang in `folder` that continues from the checkpoint of `step` in the folder of `whole`."""
    folder.mkdir()
    (folder / "blobs").symlink_to(whole.folder / "blobs")
    return run_gang("rnn-lm", params, counts, folder, resume_from=manifest_of(whole, step))


def assert_same(result: GangResult, alone: Reference, params: dict[str, Any], tolerance: float) -> None:
    expected = torch.tensor(alone.losses, dtype=torch.float64)
    torch.testing.assert_close(global_losses(result, params["batch_size"]), expected, rtol=0, atol=tolerance)
    torch.testing.assert_close(final_weights(result), alone.weights, rtol=0, atol=tolerance)
    for split, perplexity in alone.perplexity.items():
        if f"{split}_perplexity" in result.result:
            assert result.result[f"{split}_perplexity"] == pytest.approx(perplexity, rel=tolerance * 100)


@pytest.mark.slow
def test_a_small_gang_gives_what_one_process_gives(prose: Path, tmp_path: Path) -> None:
    params = job(prose, precision="float64", optimizer=ADAM, max_steps=30)
    result = run_gang("rnn-lm", params, roles(1, 1), tmp_path)
    assert_same(result, train_alone(Params.model_validate(params), tmp_path / "cache"), params, 1e-10)


# Each gang has what the others lack, so that few gangs cover all of: 1 to 3 servers, 1 to 3 trainers, unequal shares,
# every optimizer, both places of the loss, clipping or none, a course of the rate, a short last segment.
GANGS = {
    "two-servers": ((2, 1), {"optimizer": SGD, "loss_at": "trainer", "text": {"lowercase": True}}),
    "two-trainers": ((1, 2), {"optimizer": ADAM, "lr_schedule": {"shape": "cosine", "warmup_steps": 10}}),
    "two-of-each": ((2, 2), {"optimizer": ADAMW, "max_grad_norm": None, "layers": 1, "text": {"tokens": "character"}}),
    "unequal-shares": ((3, 3), {"optimizer": SGD, "bptt": 11}),
    "logits-of-three": (
        (3, 1),
        {"optimizer": ADAM, "loss_at": "trainer", "text": {"tokens": "bpe", "vocabulary": 300}},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("gang", GANGS)
def test_float64_parity_over_an_epoch_and_the_next_steps(prose: Path, tmp_path: Path, gang: str) -> None:
    counts, changes = GANGS[gang]
    params = job(prose, precision="float64", max_steps=STEPS, **{k: v for k, v in changes.items() if k != "text"})
    params["text"] |= changes.get("text", {})
    result = run_gang("rnn-lm", params, roles(*counts), tmp_path)
    assert_same(result, train_alone(Params.model_validate(params), tmp_path / "cache"), params, 1e-10)


@pytest.mark.slow
def test_float32_parity_over_50_steps(prose: Path, tmp_path: Path) -> None:
    params = job(prose, optimizer=SGD, max_steps=50)
    result = run_gang("rnn-lm", params, roles(2, 2), tmp_path)
    assert_same(result, train_alone(Params.model_validate(params), tmp_path / "cache"), params, 1e-5)


@pytest.mark.slow
def test_dropout_of_one_trainer_is_that_of_one_process(prose: Path, tmp_path: Path) -> None:
    params = job(prose, precision="float64", optimizer=ADAM, max_steps=30, dropout=0.3)
    result = run_gang("rnn-lm", params, roles(1, 1), tmp_path)
    assert_same(result, train_alone(Params.model_validate(params), tmp_path / "cache"), params, 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["within an epoch", "at an epoch's end"])
def test_a_checkpoint_continues_to_the_uninterrupted_weights(prose: Path, tmp_path: Path, place: str) -> None:
    step = 50 if place == "within an epoch" else STEPS_PER_EPOCH
    params = job(prose, optimizer=ADAM, max_steps=step + 15, dropout=0.2, checkpoint_every_steps=step)
    whole = run_gang("rnn-lm", params, roles(2, 2), tmp_path / "whole")
    manifest = manifest_of(whole, step)
    assert manifest.position["epoch"] == (0 if place == "within an epoch" else 1)
    expected = final_weights(whole)
    resumed = resume(whole, params, roles(2, 2), tmp_path / "resumed", step)
    for worker, losses in resumed.losses.items():
        assert losses == whole.losses[worker][step:]
    torch.testing.assert_close(final_weights(resumed), expected, rtol=0, atol=0)


@pytest.mark.slow
def test_early_stopping_leaves_the_best_epochs_weights(prose: Path, tmp_path: Path) -> None:
    optimizer = {"name": "adam", "lr": 0.1}
    params = job(
        prose, optimizer=optimizer, max_grad_norm=None, batch_size=32, epochs=20, early_stopping={"patience": 1}
    )
    gang = run_gang("rnn-lm", params, roles(1, 1), tmp_path)
    epochs = validation_losses(gang)
    assert len(epochs) < 20
    assert gang.result["validation_loss"] == min(epochs) < epochs[-1]


def validation_losses(result: GangResult) -> list[float]:
    """After each epoch, as the first trainer reported them."""
    lines = map(json.loads, (result.folder / "work/job/1/1/progress.jsonl").read_text().splitlines())
    scores = [line.get("metrics", {}) for line in lines if line["kind"] == "step"]
    return [metrics["validation_loss"] for metrics in scores if "validation_loss" in metrics]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [SGD, ADAM, ADAMW], ids=lambda one: one["name"])
def test_the_tutorial_protocol_with_one_trainer_gives_what_one_process_gives(
    prose: Path, tmp_path: Path, optimizer: dict[str, Any]
) -> None:
    params = job(prose, precision="float64", optimizer=optimizer, max_steps=20, **TUTORIAL)
    result = run_gang("rnn-lm", params, roles(2, 1), tmp_path)
    assert_same(result, train_alone(Params.model_validate(params), tmp_path / "cache"), params, 1e-10)


@pytest.mark.slow
def test_the_tutorials_dropout_on_the_servers_is_that_of_one_process(prose: Path, tmp_path: Path) -> None:
    """Two of the servers share the decoder, and must drop the same hidden values."""
    params = job(prose, precision="float64", optimizer=SGD, max_steps=20, dropout=0.3, **TUTORIAL)
    result = run_gang("rnn-lm", params, roles(3, 1), tmp_path)
    assert_same(result, train_alone(Params.model_validate(params), tmp_path / "cache"), params, 1e-10)


@pytest.mark.slow
def test_a_checkpoint_of_the_tutorials_form_continues_to_the_uninterrupted_weights(prose: Path, tmp_path: Path) -> None:
    """With an optimizer without state, which checkpoints lack, and one trainer, so that updates have an order."""
    sgd = {"name": "sgd", "lr": 0.5}
    params = job(prose, optimizer=sgd, max_steps=16, dropout=0.2, checkpoint_every_steps=10, **TUTORIAL)
    whole = run_gang("rnn-lm", params, roles(2, 1), tmp_path / "whole")
    resumed = resume(whole, params, roles(2, 1), tmp_path / "resumed", 10)
    assert resumed.losses == {"trainer-0": whole.losses["trainer-0"][10:]}
    torch.testing.assert_close(final_weights(resumed), final_weights(whole), rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["sync", "tutorial"])
def test_a_random_initial_state_is_carried_through_every_epoch(prose: Path, tmp_path: Path, protocol: str) -> None:
    """As in the tutorial, whose state never returns to zero; for any number of trainers that share the streams."""
    changes = {"protocol": protocol, "max_grad_norm": None, "initial_state": "random", "bptt": 90}
    params = job(prose, precision="float64", optimizer=SGD, max_steps=20, **changes)
    result = run_gang("rnn-lm", params, roles(1, 1 if protocol == "tutorial" else 2), tmp_path)
    alone = train_alone(Params.model_validate(params), tmp_path / "cache")
    assert_same(result, alone, params, 1e-10)
    from_zero = train_alone(Params.model_validate(params | {"initial_state": "zero"}), tmp_path / "cache")
    assert abs(alone.losses[0] - from_zero.losses[0]) > 1e-5


@pytest.mark.slow
def test_a_checkpoint_at_an_epochs_end_continues_the_carried_state(prose: Path, tmp_path: Path) -> None:
    changes = {"initial_state": "random", "bptt": 90, "checkpoint_every_steps": 9}
    params = job(prose, optimizer=ADAM, max_steps=14, **changes)
    whole = run_gang("rnn-lm", params, roles(1, 2), tmp_path / "whole")
    position = manifest_of(whole, 9).position
    assert (position["epoch"], position["step"]) == (1, 9)
    resumed = resume(whole, params, roles(1, 2), tmp_path / "resumed", 9)
    assert resumed.losses == {worker: losses[9:] for worker, losses in whole.losses.items()}
    torch.testing.assert_close(final_weights(resumed), final_weights(whole), rtol=0, atol=0)


@pytest.mark.slow
def test_the_tutorial_protocol_with_two_trainers_learns_as_well(prose: Path, tmp_path: Path) -> None:
    """It takes two steps of the remote weights for each one of the reference, so it may be ahead."""
    params = job(prose, optimizer=ADAM, max_steps=200, **TUTORIAL)
    result = run_gang("rnn-lm", params, roles(1, 2), tmp_path)
    alone = train_alone(Params.model_validate(params), tmp_path / "cache")
    assert result.result["validation_perplexity"] < 1.1 * alone.perplexity["validation"]


@pytest.mark.slow
def test_the_examples_first_steps_reach_the_perplexity_of_one_process(tmp_path: Path) -> None:
    """In float32 and on real text; how far the whole example gets is a test of the cluster."""
    text = (ROOT / "examples/rnn-lm.json").read_text().replace("examples/data", str(ROOT / "examples/data"))
    params = {**json.loads(text)["params"], "max_steps": 50}
    params["text"] |= {"test": None, "validation": 0.02}
    result = run_gang("rnn-lm", params, roles(2, 2), tmp_path)
    alone = train_alone(Params.model_validate(params), tmp_path / "cache")
    assert alone.perplexity["validation"] < 400
    assert result.result["validation_perplexity"] == pytest.approx(alone.perplexity["validation"], rel=0.01)


@pytest.mark.slow
def test_bfloat16_computes_in_it_and_keeps_float32_weights(prose: Path, tmp_path: Path) -> None:
    """On CPUs, too: it follows float32 closely, but not to the bit."""
    params = job(prose, optimizer=ADAM, max_steps=30)
    exact = run_gang("rnn-lm", params, roles(1, 1), tmp_path / "float32")
    rounded = run_gang("rnn-lm", params | {"precision": "bfloat16"}, roles(1, 1), tmp_path / "bfloat16")
    assert {weight.dtype for weight in final_weights(rounded).values()} == {torch.float32}
    losses = global_losses(rounded, 8) - global_losses(exact, 8)
    assert 0 < losses.abs().max() < 0.05


@pytest.mark.slow
def test_the_tutorials_example_trains_on_random_tokens(tmp_path: Path) -> None:
    example = json.loads((ROOT / "examples/tutorials/rnn.json").read_text())
    counts = {Role(role): count for role, count in example["roles"].items()}
    result = run_gang("rnn-lm", example["params"], counts, tmp_path)
    losses = result.losses["trainer-0"]
    assert len(losses) == 50
    assert losses == pytest.approx([math.log(10)] * 50, abs=0.1)  # nothing to learn
    sample = result.artifact("sample.txt").read_text().split()
    assert len(sample) == 21
    assert set(sample) <= {str(number) for number in range(10)}


@pytest.mark.slow
def test_a_markov_text_is_learned_as_far_as_it_can_be(tmp_path: Path) -> None:
    text = {"synthetic": {"tokens": 8000, "vocabulary": 12, "source": "markov", "test": 2000}}
    optimizer = {"name": "adam", "lr": 0.02}
    params = {"text": text, "embedding_dim": 16, "hidden_dim": 16, "layers": 1, "dropout": 0.0, "optimizer": optimizer}
    result = run_gang("rnn-lm", params | {"epochs": 1, "bptt": 5}, roles(1, 1), tmp_path)
    assert 3.9 < result.result["test_perplexity"] < 4.8  # at best 4; without learning 12
