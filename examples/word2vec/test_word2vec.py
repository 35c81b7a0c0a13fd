"""`word2vec` with parameter servers and trainers, compared with one process."""

from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch
from rolecall_word2vec import WORKLOAD, Params
from rolecall_word2vec.trainer import batches
from safetensors.torch import load_file
from torch.nn.functional import binary_cross_entropy_with_logits

from rolecall.kit import CheckpointManifest, Role
from rolecall.kit.data_order import derive_seed
from rolecall.kit.parameter_server import ShardSpec, Uniform, initial_rows
from rolecall.kit.text.corpus import Corpus, open_corpus
from rolecall.testing import GangResult, run_gang

SERVERS_AND_TRAINERS = {Role.PARAMETER_SERVER: 2, Role.TRAINER: 2}


@pytest.fixture(autouse=True)
def readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text lies outside the gangs' own folders, and the reference reads it in this process."""
    monkeypatch.setenv("ROLECALL_DATA_ROOTS", str(tmp_path))


def params(folder: Path, **more: Any) -> dict[str, Any]:
    text = folder / "text.txt"
    text.write_text("the cat sat on the mat and the dog lay by the door while rain fell on red roofs\n" * 40)
    words = {"train": str(text), "validation": 0.0}
    return {"text": words, "dim": 8, "batch_size": 190, "precision": "float64", "epochs": 3, "seed": 5} | more


def train_alone(params: Params, corpus: Corpus) -> tuple[list[float], torch.Tensor]:
    """The loss of every step and the words' vectors: plain PyTorch, one process, whole batches."""
    whole, bound = ShardSpec(0, 1, corpus.vocabulary_size), 0.5 / params.dim
    initializers = [Uniform(derive_seed(params.seed, table), bound) for table in range(2)]
    words, neighbors = (
        torch.nn.Parameter(initial_rows(whole, params.dim, initializer, torch.float64)) for initializer in initializers
    )
    optimizer = torch.optim.Adagrad([words, neighbors], lr=params.optimizer.lr)
    losses: list[float] = []
    for epoch in range(params.epochs):
        for batch in batches(params, corpus.tokens("train"), (0, 1), epoch, 0):
            scores = (words[batch.words].unsqueeze(1) * neighbors[batch.others]).sum(2)
            labels = torch.zeros_like(scores)
            labels[:, 0] = 1
            loss = binary_cross_entropy_with_logits(scores, labels, reduction="none").sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    return losses, words.detach()


def vectors(result: GangResult) -> torch.Tensor:
    with ZipFile(result.artifact("model.zip")) as archive:
        return load_file(archive.extract("vectors.safetensors", result.folder))["vectors"]


@pytest.mark.slow
def test_two_servers_and_two_trainers_do_what_one_process_does(tmp_path: Path) -> None:
    result = run_gang(WORKLOAD, params(tmp_path), SERVERS_AND_TRAINERS, tmp_path)
    read = Params.model_validate(params(tmp_path))
    expected_losses, expected = train_alone(read, open_corpus(read.text, tmp_path / "cache"))
    pairs = zip(result.losses["trainer-0"], result.losses["trainer-1"], strict=True)
    losses = torch.tensor([sum(pair) / 2 for pair in pairs], dtype=torch.float64)  # of equal shares
    torch.testing.assert_close(losses, torch.tensor(expected_losses, dtype=torch.float64), rtol=0, atol=1e-10)
    torch.testing.assert_close(vectors(result), expected, rtol=0, atol=1e-10)
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.slow
def test_it_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    given = params(tmp_path, checkpoint_every_steps=7)
    whole = run_gang(WORKLOAD, given, SERVERS_AND_TRAINERS, tmp_path / "whole")
    checkpoint = CheckpointManifest.model_validate_json((whole.folder / "checkpoint-000007.json").read_text())
    (tmp_path / "resumed").mkdir()
    (tmp_path / "resumed" / "blobs").symlink_to(whole.folder / "blobs")
    expected = vectors(whole)
    resumed = run_gang(WORKLOAD, given, SERVERS_AND_TRAINERS, tmp_path / "resumed", resume_from=checkpoint)
    assert torch.equal(vectors(resumed), expected)
    assert len(resumed.losses["trainer-0"]) == len(whole.losses["trainer-0"]) - 7
