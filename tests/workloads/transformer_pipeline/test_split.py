"""Cuts between named blocks."""

from itertools import chain
from typing import Any

import pytest
import torch
from torch.distributed.pipelining import SplitPoint

from rolecall.workloads.transformer_pipeline.build import SplitDecoder
from rolecall.workloads.transformer_pipeline.params import Params, block_names

CPU = torch.device("cpu")


def decoder(stages: int, **changes: Any) -> SplitDecoder:
    given = {"text": {"train": "text.txt"}, "layers": 4, "dim": 8, "heads": 2, "context": 6, "precision": "float64"}
    return SplitDecoder(Params.model_validate(given | changes), 11, stages, CPU)


def blocks(split: SplitDecoder, stages: int) -> list[list[str]]:
    """The blocks of each stage, from the names of its weights."""
    names = [[name for name, _ in split.part(stage).named_parameters()] for stage in range(stages)]
    found = [[block for block in block_names(4) if any(n.startswith(f"{block}.") for n in part)] for part in names]
    assert list(chain.from_iterable(found)) == list(block_names(4))
    return found


@pytest.mark.parametrize(
    ("cuts", "sizes"),
    [
        (["layers.2"], [3, 3]),
        ([{"layer": "layers.1", "at": "end"}], [3, 3]),
        (["layers.0", "head"], [1, 4, 1]),
        ([{"layer": "layers.2"}, {"layer": "layers.2", "at": "end"}], [3, 1, 2]),
    ],
)
def test_stages_have_the_blocks_between_the_cuts(cuts: list[Any], sizes: list[int]) -> None:
    split = decoder(len(sizes), cuts=cuts)
    assert [len(part) for part in blocks(split, len(sizes))] == sizes
    assert split.widths() == [8] * (len(sizes) - 1) + [11]
    x = torch.arange(12).view(2, 6) % 11
    expected = split.whole()(x)
    for stage in range(len(sizes)):
        x = split.part(stage)(x)
    assert torch.equal(x, expected)


@pytest.mark.parametrize(
    ("cuts", "expected"),
    [
        (None, {"layers.2": SplitPoint.BEGINNING}),
        (["layers.1"], {"layers.1": SplitPoint.BEGINNING}),
        ([{"layer": "layers.0", "at": "end"}], {"layers.0": SplitPoint.END}),
        (
            ["layers.1", {"layer": "layers.1", "at": "end"}],
            {"layers.1": SplitPoint.BEGINNING, "layers.2": SplitPoint.BEGINNING},
        ),
    ],
)
def test_the_tracer_gets_the_same_points(cuts: list[Any] | None, expected: dict[str, SplitPoint]) -> None:
    stages = 2 if cuts is None else len(cuts) + 1
    assert decoder(stages, cuts=cuts).split_points == expected
