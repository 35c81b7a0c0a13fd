# pyright: standard
"""Whole models that a job brings, cut between their children."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rolecall.kit.structure import child_blocks
from rolecall.spec.errors import InputError
from rolecall.workloads.transformer_pipeline.build import SplitCustomModel
from rolecall.workloads.transformer_pipeline.params import Params

TUTORIALS = Path(__file__).parents[3] / "examples" / "tutorials"
SIZES = {"dim": 8, "layers": 4, "heads": 2}
CPU = torch.device("cpu")
VOCABULARY = 11

_THEIRS = """
import torch
from torch import nn

class Chain(nn.Module):
    '''Blocks one after the other, which a test spoils.'''

    def __init__(self, vocabulary, spoiled):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 4)
        self.layers = nn.ModuleDict({str(index): nn.Linear(4, 4) for index in range(2)})
        self.narrow = nn.Linear(4, 3)
        self.output = nn.Linear(3, vocabulary)
        self.spoiled = spoiled
        if spoiled == "loose":
            self.scale = nn.Parameter(torch.ones(4))
        if spoiled == "shared":
            self.layers["1"].weight = self.layers["0"].weight
        if spoiled == "buffer":
            self.output.register_buffer("seen", torch.zeros(1))
        if spoiled == "empty":
            self.last = nn.Identity()

    def forward(self, x):
        if self.spoiled == "broken":
            raise ZeroDivisionError("in theirs")
        if self.spoiled == "strict":
            return self.output(self.narrow(self.layers["1"](self.layers["0"](self.embedding(x)))))
        x = x if self.embedding is None else self.embedding(x)
        first = x
        for layer in self.layers.values():
            x = layer(x)
        if self.spoiled == "skipping":
            x = x + first
        if self.spoiled == "pair" and self.narrow is None:
            return x, x
        x = x if self.narrow is None else self.narrow(x)
        if self.spoiled == "nan":
            return self.output(x) * float("nan")
        if self.spoiled in ("rounding", "noise"):
            logits = self.output(x)
            if self.training:
                logits = logits + (1e-5 if self.spoiled == "rounding" else 1e-3)
            return logits + torch.tensor([-torch.inf, -1e9] + [0.0] * 9)
        return x if self.output is None else self.output(x)

def chain(vocabulary, context, spoiled=""):
    return Chain(vocabulary - (spoiled == "small"), spoiled)

def text(vocabulary, context):
    return "a model"
"""


@pytest.fixture(autouse=True)
def _plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two allowed folders: the examples', and one with a test's models."""
    (tmp_path / "their_chains.py").write_text(_THEIRS)
    monkeypatch.setenv("ROLECALL_PLUGINS", f"{TUTORIALS}:{tmp_path}")
    monkeypatch.setattr(sys, "path", sys.path[:])
    importlib.invalidate_caches()
    yield
    sys.modules.pop("their_chains", None)


def split(builder: str, stages: int, *, arguments: dict[str, Any] | None = None, **changes: Any) -> SplitCustomModel:
    model = {"builds": "model", "builder": builder, "arguments": arguments or {}}
    given = {"text": {"train": "text.txt"}, "context": 6, "precision": "float64", "model": model}
    params = Params.model_validate(given | changes)
    assert params.whole_model
    return SplitCustomModel(params, params.whole_model, VOCABULARY, stages, CPU)


def transformer(stages: int, causal: bool = False, **changes: Any) -> SplitCustomModel:
    arguments = {**SIZES, "dropout": 0.0, "causal": causal}
    return split("tutorial_transformer:transformer", stages, arguments=arguments, **changes)


def tokens(rows: int = 4) -> torch.Tensor:
    return torch.randint(VOCABULARY, (rows, 6), generator=torch.Generator().manual_seed(0))


def test_a_hook_of_a_part_is_not_one_of_the_other_parts() -> None:
    """A rank can have several parts, and registers hooks on each of them."""
    cut, called = transformer(2), list[int]()
    parts = [cut.part(stage) for stage in range(2)]
    for stage, part in enumerate(parts):
        part.register_forward_hook(lambda *_, stage=stage: called.append(stage))
        part.get_submodule("layers").register_forward_hook(lambda *_: None)
    parts[0](tokens())
    assert called == [0]
    assert [len(part.get_submodule("layers")._forward_hooks) for part in parts] == [1, 1]


@pytest.mark.parametrize("causal", [False, True])
def test_the_tutorials_transformer_is_cut_by_deleting_parts(causal: bool) -> None:
    cut = transformer(2, causal, cuts=["layers.2"])
    first, second = cut.part(0), cut.part(1)
    assert child_blocks(first) == ("tok_embeddings", "layers.0", "layers.1")
    assert (first.norm, first.output, second.tok_embeddings) == (None, None, None)
    assert child_blocks(second) == ("layers.2", "layers.3", "norm", "output")
    assert cut.widths() == [8, VOCABULARY]
    assert torch.equal(second(first(tokens())), transformer(3, causal).whole()(tokens()))


def test_the_tutorials_attention_is_over_samples_and_the_causal_one_over_earlier_tokens() -> None:
    given, changed = tokens(), tokens()
    changed[1, 3] = (changed[1, 3] + 1) % VOCABULARY
    for causal in (False, True):
        model = transformer(2, causal).whole()
        differs = (model(given) != model(changed)).any(-1)
        others = differs[[0, 2, 3]]
        assert (not others.any() and differs[1].tolist() == [False] * 3 + [True] * 3) if causal else others[:, 3].all()


def test_without_cuts_no_stage_has_more_multiplications_than_it_must() -> None:
    cut = split("their_chains:chain", 3)
    assert [list(child_blocks(cut.part(stage))) for stage in range(3)] == [
        ["embedding", "layers.0"],
        ["layers.1", "narrow"],
        ["output"],
    ]
    assert cut.widths() == [4, 3, VOCABULARY]


@pytest.mark.parametrize(
    ("spoiled", "expected"),
    [
        ("loose", "weights outside its children: scale"),
        ("shared", "shared weights: layers.0.weight = layers.1.weight; stages can't share weights"),
        ("buffer", "persistent=False"),
        ("broken", r"fails for tokens \[b, t\]: ZeroDivisionError: in theirs"),
        ("small", r"must return logits \[b, t, 11\]"),
        ("strict", "can't run with only embedding, layers.0, layers.1; its forward must skip children that are None"),
        ("skipping", "in one tensor, in the order of the children"),
        ("pair", r"return one tensor \[b, t, width\]"),
    ],
)
def test_models_that_cant_be_cut_by_hand_are_refused(spoiled: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        split("their_chains:chain", 2, arguments={"spoiled": spoiled}, cuts=["narrow"]).widths()


@pytest.mark.parametrize(
    ("builder", "stages", "changes", "expected"),
    [
        ("their_chains:text", 2, {}, "returned a value of the type str, not a torch module"),
        ("their_chains:chain", 6, {}, "5 blocks for 6 virtual stages"),
        ("their_chains:chain", 2, {"cuts": ["layers.2"]}, "no block layers.2 to cut before; valid: layers.0, layers.1"),
        ("their_chains:chain", 2, {"cuts": [{"layer": "output", "at": "end"}]}, "no block output to cut after"),
    ],
)
def test_cuts_that_a_custom_model_cant_have_are_refused(
    builder: str, stages: int, changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(InputError, match=expected):
        split(builder, stages, **changes)


def test_a_stage_without_weights_is_refused() -> None:
    with pytest.raises(InputError, match="stage 1 has only last, without weights"):
        split("their_chains:chain", 2, arguments={"spoiled": "empty"}, cuts=["last"])


@pytest.mark.parametrize("dropout", [0.01, 0.5])
def test_a_traced_model_has_no_dropout(dropout: float) -> None:
    arguments = {**SIZES, "dropout": dropout}
    cut = split("tutorial_transformer:transformer", 2, arguments=arguments, split="tracer")
    with pytest.raises(InputError, match="dropout, which split: tracer can't disable"):
        cut.whole()


def test_a_traced_model_may_round_differently_for_evaluation() -> None:
    """As torch's attention does. Masked logits don't count for the scale of the rounding errors."""
    rounding, noise = (
        split("their_chains:chain", 2, arguments={"spoiled": spoiled}, split="tracer")
        for spoiled in ("rounding", "noise")
    )
    rounding.whole()
    with pytest.raises(InputError, match="dropout"):
        noise.whole()


def test_a_model_whose_logits_are_nan_is_refused_for_that_reason() -> None:
    with pytest.raises(InputError, match="logits are NaN"):
        split("their_chains:chain", 2, arguments={"spoiled": "nan"})


def test_initial_weights_depend_only_on_the_seed() -> None:
    weights = dict(transformer(2, cuts=["layers.1"]).whole().named_parameters())
    torch.manual_seed(5)
    for stage in range(3):
        for name, weight in transformer(3).part(stage).named_parameters():
            assert torch.equal(weight, weights[name]), name
    other = dict(transformer(2, seed=1).whole().named_parameters())
    assert not torch.equal(other["output.weight"], weights["output.weight"])
