"""Layers that a job brings of its own."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rolecall.spec.errors import InputError
from rolecall.workloads.transformer_pipeline.build import SplitDecoder, build_decoder, custom_layers, decoder_shape
from rolecall.workloads.transformer_pipeline.model import Cut, Decoder, Shape
from rolecall.workloads.transformer_pipeline.params import Params

_THEIRS = """
import torch
from torch import nn

class Averaging(nn.Module):
    def __init__(self, dim, reach):
        super().__init__()
        self.mix, self.reach = nn.Linear(dim, dim), reach

    def forward(self, x):
        seen = torch.ones(x.shape[1], x.shape[1]).tril(self.reach)
        return x + self.mix(seen / seen.sum(1, keepdim=True) @ x)

def averaging(dim, context, reach=0):
    return Averaging(dim, reach)

def shrinking(dim, context):
    return nn.Linear(dim, dim // 2)

def nothing(dim, context):
    return nn.Identity()

def deep(dim, context):
    layer = nn.Linear(dim, dim)
    layer.rate = torch.linspace(0, 0.1, 4)[2].item()
    return layer

class Leaky(nn.Module):
    def __init__(self, context):
        super().__init__()
        self.mix = nn.Linear(context, context)

    def forward(self, x):
        return self.mix(x.transpose(1, 2)).transpose(1, 2)

def leaky(dim, context):
    return Leaky(context)

def failing(dim, context):
    raise ValueError("dim must be even")

def normed(dim, context):
    layer = nn.Linear(dim, dim)
    layer.register_buffer("seen", torch.zeros(1))
    return layer

def tied(dim, context):
    layer = nn.Sequential(nn.Linear(dim, dim), nn.Linear(dim, dim))
    layer[1].weight = layer[0].weight
    return layer
"""


@pytest.fixture(autouse=True)
def _plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of the user's own builders, allowed."""
    (tmp_path / "their_blocks.py").write_text(_THEIRS)
    monkeypatch.setenv("ROLECALL_PLUGINS", str(tmp_path))
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "their_blocks", raising=False)
    importlib.invalidate_caches()


def params(function: str, **arguments: Any) -> Params:
    model = {"builder": f"their_blocks:{function}", "arguments": arguments}
    return Params.model_validate({"text": {"train": "text.txt"}, "dim": 6, "layers": 4, "context": 5, "model": model})


def decoder(given: Params, shape: Shape, part: int | None = None) -> Decoder:
    ends = (0, 1, 2, 4)
    cut = None if part is None else Cut(ends[part], ends[part + 1], embeds=part == 0, predicts=part == 2)
    make = custom_layers(given)
    return build_decoder(shape, cut, seed=0, dtype=torch.float32, device=torch.device("cpu"), make_layer=make)


def test_the_jobs_own_layers_begin_alike_however_they_are_cut() -> None:
    given = params("averaging")
    shape = decoder_shape(given, 9)
    x = torch.tensor([[1, 2, 3, 4, 5]])
    expected = decoder(given, shape)(x)
    for part in range(3):
        x = decoder(given, shape, part)(x)
    assert torch.equal(x, expected)
    weights = [layer.get_parameter("mix.weight") for layer in decoder(given, shape).layers.values()]
    assert not torch.equal(weights[0], weights[1])


def test_a_builder_may_compute_with_values_also_without_cuts() -> None:
    """Tensors without memory have none. The head has 1.5 times the weights of a layer."""
    split = SplitDecoder(params("deep"), 11, 2, torch.device("cpu"))
    layers = [list(split.part(stage).layers) for stage in range(2)]
    assert layers == [["0", "1", "2"], ["3"]]


@pytest.mark.parametrize(
    ("function", "arguments", "expected"),
    [
        ("averaging", {"reach": 1}, "sees later ones"),
        ("shrinking", {}, "must have the shape of its input"),
        ("normed", {}, "persistent=False"),
        ("nothing", {}, "without weights"),
        ("tied", {}, "shared weights: 0.weight = 1.weight; give each its own"),
        ("averaging", {"width": 3}, "can't be called with"),
        ("failing", {}, "^their_blocks:failing fails: ValueError: dim must be even$"),
        (
            "leaky",
            {},
            "^their_blocks:leaky fails for 2 tokens: RuntimeError: mat1 and mat2 .*; a layer must accept every number "
            "of tokens up to the context$",
        ),
    ],
)
def test_layers_that_no_stage_can_hold_are_refused(function: str, arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        custom_layers(params(function, **arguments))
