"""Custom models without their weights."""

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from rolecall.kit.builders import Builder
from rolecall.kit.structure import structure_of

_THEIRS = """
import torch
from torch import nn

def huge(width):
    return nn.Sequential(nn.Linear(width, width))

def saved(width):
    layer = nn.Linear(width, width)
    layer.load_state_dict({"weight": torch.ones(width, width, device="cpu"), "bias": torch.ones(width, device="cpu")})
    return layer

def curious(width):
    return nn.Linear(width, int(torch.ones(1).sum().item()))
"""


@pytest.fixture(autouse=True)
def _theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "their_structures.py").write_text(_THEIRS)
    monkeypatch.setenv("ROLECALL_PLUGINS", str(tmp_path))
    monkeypatch.setattr(sys, "path", sys.path[:])
    yield
    sys.modules.pop("their_structures", None)


def test_a_model_that_is_larger_than_memory_has_a_structure() -> None:
    model = structure_of(Builder(builder="their_structures:huge"), 2**24)
    assert [name for name, _ in model.named_children()] == ["0"]
    assert sum(weight.nbytes for weight in model.parameters()) > 2**50


def test_weights_of_a_file_are_left_out_without_a_warning() -> None:
    with warnings.catch_warnings(action="error"):
        assert isinstance(structure_of(Builder(builder="their_structures:saved"), 2), nn.Linear)


@pytest.mark.parametrize("arguments", [{}, {"unknown": 1}])
def test_a_builder_that_fails_without_weights_is_left_to_the_real_build(arguments: dict[str, int]) -> None:
    assert structure_of(Builder(builder="their_structures:curious", arguments=arguments), 2) is None
    assert torch.ones(1).device.type == "cpu"
