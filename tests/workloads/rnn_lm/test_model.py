# pyright: standard
"""The exported model runs in plain PyTorch, and writes and scores text."""

import math
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from rolecall.kit.text.corpus import Corpus, open_corpus
from rolecall.spec.errors import InputError
from rolecall.workloads.rnn_lm.build import make_recurrent
from rolecall.workloads.rnn_lm.export import shape_of, write_model, write_sample
from rolecall.workloads.rnn_lm.model import LanguageModel, Recurrent, load
from rolecall.workloads.rnn_lm.params import Params

TEXT = "The cat sat on the mat, as cats do.\nThe dog did not.\n" * 30


@pytest.fixture
def params(tmp_path: Path) -> Params:
    (tmp_path / "text").write_text(TEXT)
    given = {"text": {"train": str(tmp_path / "text"), "vocabulary": 12}, "embedding_dim": 8, "hidden_dim": 8}
    return Params.model_validate({**given, "sample": {"prompt": "The cat", "tokens": 30}})


@pytest.fixture
def corpus(params: Params, tmp_path: Path) -> Corpus:
    return open_corpus(params.text, tmp_path / "cache")


@pytest.fixture
def trained(params: Params, corpus: Corpus) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(shape_of(params), corpus.tokenizer).eval()


@pytest.mark.slow
def test_the_export_loads_in_a_process_without_rolecall(
    params: Params, corpus: Corpus, trained: LanguageModel, tmp_path: Path
) -> None:
    with zipfile.ZipFile(write_model(tmp_path, params, corpus, trained.state_dict())) as archive:
        archive.extractall(tmp_path / "model")
    asked = (
        "import sys; from model import load; model = load('.'); print(model.perplexity('The cat sat.'));"
        "print(model.generate('The', tokens=9)); assert not any('rolecall' in name for name in sys.modules)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    answered = subprocess.check_output(
        [sys.executable, "-c", asked], cwd=tmp_path / "model", env=environment, text=True
    )
    perplexity, text = answered.split("\n", 1)
    assert float(perplexity) == pytest.approx(trained.perplexity("The cat sat."), rel=1e-5)
    assert text.rstrip("\n") == trained.generate("The", tokens=9).rstrip("\n")


def test_the_export_keeps_float64(params: Params, corpus: Corpus, trained: LanguageModel, tmp_path: Path) -> None:
    with zipfile.ZipFile(write_model(tmp_path, params, corpus, trained.double().state_dict())) as archive:
        archive.extractall(tmp_path / "model")
    assert load(tmp_path / "model").decoder.weight.dtype == torch.float64


def test_perplexity_is_that_of_the_whole_text_in_one_chunk(corpus: Corpus, trained: LanguageModel) -> None:
    ids = torch.tensor(corpus.encode(TEXT * 3)).unsqueeze(1)
    assert len(ids) > 1001
    loss = F.cross_entropy(trained(ids[:-1])[0].flatten(0, 1), ids[1:].flatten())
    assert trained.perplexity(TEXT * 3) == pytest.approx(math.exp(float(loss.detach())), rel=1e-5)


def test_the_perplexity_of_a_diverged_model_is_infinite(trained: LanguageModel) -> None:
    with torch.no_grad():
        trained.decoder.weight.zero_()
        trained.decoder.bias.copy_(torch.linspace(0, 1e6, len(trained.decoder.bias)))
    assert trained.perplexity("The cat sat.") == math.inf


def test_samples_are_seeded_and_know_no_unknown_token(
    params: Params, corpus: Corpus, trained: LanguageModel, tmp_path: Path
) -> None:
    first = write_sample(tmp_path, params, corpus, trained.state_dict()).read_text()
    assert first == write_sample(tmp_path, params, corpus, trained.state_dict()).read_text()
    assert first.startswith("The cat")
    assert "<unk>" not in first
    assert first != trained.generate("The cat", tokens=30, seed=1)


def test_a_text_without_tokens_is_refused(trained: LanguageModel) -> None:
    with pytest.raises(ValueError, match="has no tokens"):
        trained.generate("  ")


OWN_PARTS = """
import torch

class Gru(torch.nn.GRU):
    def __init__(self, inputs, outputs, as_tuple=True):
        super().__init__(inputs, outputs)
        self.as_tuple = as_tuple

    def forward(self, vectors, state):
        hidden, after = super().forward(vectors, state and state[0])
        return hidden, (after,) if self.as_tuple else after

class Tied(Gru):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.bias_hh_l0 = self.bias_ih_l0
"""


@pytest.fixture
def own_part(params: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Params]:
    """The parameters of a job with a GRU of its own, made with these arguments."""
    (tmp_path / "own_recurrent_parts.py").write_text(OWN_PARTS)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "own_recurrent_parts", raising=False)
    monkeypatch.setenv("ROLECALL_PLUGINS", str(tmp_path))
    given = params.model_dump(exclude={"layers", "dropout"})
    return lambda name="Gru", **arguments: Params.model_validate(
        {**given, "model": {"builder": f"own_recurrent_parts:{name}", "arguments": arguments}}
    )


def test_a_recurrent_part_of_the_jobs_own_must_fit(own_part: Callable[..., Params]) -> None:
    assert isinstance(make_recurrent(own_part()), torch.nn.GRU)
    with pytest.raises(InputError, match="must return hidden states"):
        make_recurrent(own_part(as_tuple=False))


@pytest.mark.parametrize("name", ["Gru", "Tied"])
def test_an_export_with_a_part_of_its_own_needs_that_package(
    own_part: Callable[..., Params], corpus: Corpus, tmp_path: Path, name: str
) -> None:
    params = own_part(name)
    part = make_recurrent(params)
    trained = LanguageModel(shape_of(params), corpus.tokenizer)
    trained.recurrent.load_state_dict(part.state_dict())
    with zipfile.ZipFile(write_model(tmp_path, params, corpus, trained.state_dict())) as archive:
        archive.extractall(tmp_path / "model")
    assert f"`own_recurrent_parts:{name}`" in (tmp_path / "model/README.md").read_text()
    assert load(tmp_path / "model").generate("The", tokens=9) == trained.eval().generate("The", tokens=9)


def test_the_lstm_computes_in_a_given_dtype_as_in_its_own() -> None:
    """As on GPUs in mixed precision; weights and gradients keep their dtype."""
    torch.manual_seed(0)
    recurrent, vectors = Recurrent(5, 4, layers=2, dropout=0.0), torch.randn(7, 3, 5)
    hidden, state = recurrent(vectors)
    second = recurrent(vectors, state)[0]
    for dtype, tolerance in ((torch.float32, 0.0), (torch.bfloat16, 0.03)):
        found, found_state = recurrent._in_dtype(dtype, vectors, None)
        assert {found.dtype, *(one.dtype for one in found_state)} == {dtype}
        torch.testing.assert_close(found.float(), hidden, rtol=0, atol=tolerance)
        found_second = recurrent._in_dtype(dtype, vectors, found_state)[0]
        torch.testing.assert_close(found_second.float(), second, rtol=0, atol=tolerance)
    found_second.float().sum().backward()
    assert {weight.grad.dtype for weight in recurrent.parameters() if weight.grad is not None} == {torch.float32}
    assert all(weight.grad is not None for weight in recurrent.parameters())
