"""Cuts are as good as the best of all partitions."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolecall.spec.errors import InputError
from rolecall.workloads.resnet_pipeline.partition import best_cuts, places

costs = st.integers(2, 4).flatmap(
    lambda stages: st.integers(stages, 8).flatmap(
        lambda blocks: st.lists(
            st.lists(st.integers(0, 20).map(float), min_size=blocks, max_size=blocks), min_size=stages, max_size=stages
        )
    )
)


def slowest(costs: list[list[float]], cuts: list[int]) -> float:
    bounds = pairwise([0, *cuts, len(costs[0])])
    return max(sum(of_stage[begin:end]) for of_stage, (begin, end) in zip(costs, bounds, strict=True))


@given(costs)
def test_no_partition_is_better(costs: list[list[float]]) -> None:
    cuts = best_cuts(costs)
    assert len(cuts) == len(costs) - 1
    assert cuts == sorted(set(cuts))
    assert 0 < cuts[0] <= cuts[-1] < len(costs[0])
    every = combinations(range(1, len(costs[0])), len(cuts))
    assert slowest(costs, cuts) == min(slowest(costs, list(others)) for others in every)


@pytest.mark.parametrize(
    ("costs", "cuts"),
    [
        ([[1, 1, 1, 1]] * 2, [2]),
        ([[9, 1, 1, 1]] * 2, [1]),
        ([[1, 1, 1, 9]] * 3, [1, 3]),
        ([[1, 1, 1, 1], [3, 3, 3, 3]], [3]),
    ],
    ids=["alike", "a dear first block", "a dear last block", "a slow second stage"],
)
def test_cuts(costs: list[list[float]], cuts: list[int]) -> None:
    assert best_cuts(costs) == cuts


def test_cuts_are_found_by_name() -> None:
    assert places(["b", "d"], ["a", "b", "c", "d"]) == [1, 3]


@pytest.mark.parametrize(
    ("cuts", "said"),
    [(["a"], "no block a to cut before; legal: b, c"), (["c", "b"], "follow the model's order"), (["b", "b"], "once")],
)
def test_cuts_that_the_model_cant_have_are_refused(cuts: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        places(cuts, ["a", "b", "c"])
