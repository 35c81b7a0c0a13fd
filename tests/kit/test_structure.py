# pyright: standard
"""Custom models without their weights, and parts of them."""

import sys
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from rolecall.kit.builders import Builder
from rolecall.kit.structure import child_blocks, keep_blocks, require_separable, structure_of
from rolecall.spec.errors import InputError

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


def blocks() -> nn.Module:
    layers = nn.ModuleDict({str(index): nn.Linear(2, 2) for index in range(3)})
    return nn.Sequential(OrderedDict([("first", nn.Linear(2, 2)), ("layers", layers), ("last", nn.Linear(2, 2))]))


def test_a_part_shares_the_weights_of_its_blocks_and_has_no_others() -> None:
    whole = blocks()
    assert child_blocks(whole) == ("first", "layers.0", "layers.1", "layers.2", "last")
    part = keep_blocks(whole, {"layers.1", "last"})
    assert child_blocks(part) == ("layers.1", "last")
    assert part.get_parameter("layers.1.weight") is whole.get_parameter("layers.1.weight")
    part.register_forward_hook(lambda *_: None)
    assert (len(part._forward_hooks), len(whole._forward_hooks)) == (1, 0)
    require_separable(whole, "theirs:blocks")


def test_weights_of_several_blocks_and_buffers_belong_to_no_part() -> None:
    shared, buffered, outside = blocks(), blocks(), blocks()
    shared.get_submodule("last").weight = shared.get_parameter("first.weight")
    buffered.get_submodule("last").register_buffer("seen", torch.zeros(1))
    outside.scale = nn.Parameter(torch.ones(1))
    for model, reason in ((shared, "first.weight = last.weight"), (buffered, "buffers"), (outside, "children: scale")):
        with pytest.raises(InputError, match=reason):
            require_separable(model, "theirs:blocks")
