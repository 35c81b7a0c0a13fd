"""Schedules against the papers' formulas; cuts against all partitions."""

import time
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cpu_time import is_within

from rolecall.kit.pipelining import (
    Side,
    Task,
    best_cuts,
    bubble,
    cut_indices,
    fill_and_drain,
    makespan,
    one_forward_one_backward,
    zero_bubble,
)
from rolecall.spec.errors import InputError


@pytest.mark.parametrize("ranks", [2, 4, 7])
@pytest.mark.parametrize("micro_batches", [8, 32])
def test_gpipe_and_1f1b_lose_what_their_papers_say(ranks: int, micro_batches: int) -> None:
    formula = (ranks - 1) / (micro_batches + ranks - 1)
    assert bubble(fill_and_drain(ranks, micro_batches)) == pytest.approx(formula)
    assert bubble(one_forward_one_backward(ranks, micro_batches)) == pytest.approx(formula)


@pytest.mark.parametrize("ranks", [2, 4, 7])
@pytest.mark.parametrize("micro_batches", [8, 32])
def test_zero_bubble_loses_a_third_of_what_1f1b_loses(ranks: int, micro_batches: int) -> None:
    """ZB-H1, table 2 of Qi et al. (2023), with equal forward, input and weight passes."""
    order = zero_bubble(ranks, micro_batches)
    assert makespan(order) == 3 * micro_batches + ranks - 1
    assert bubble(order) == pytest.approx((ranks - 1) / (3 * micro_batches + ranks - 1))


@pytest.mark.slow
def test_the_time_to_plan_an_order_grows_with_its_tasks_alone() -> None:
    # Each pass waits for the rank after its own, which a search through the ranks would have passed already.
    ranks, stages = 256, 20_000
    order = [
        [Task(stage, "F", 0) for stage in range(stages) if stage % ranks == ranks - 1 - rank] for rank in range(ranks)
    ]
    begin = time.thread_time()
    assert makespan(order) == stages
    order[0].insert(0, Task(stages, "F", 0))
    with pytest.raises(ValueError, match="rank 0 waits at 20000F0 for 19999F0"):
        makespan(order)
    assert is_within(time.thread_time() - begin, 0.5)


@given(st.integers(1, 8), st.integers(1, 12))
def test_zero_bubble_is_1f1b_with_split_passes_in_order(ranks: int, micro_batches: int) -> None:
    plain = one_forward_one_backward(ranks, micro_batches)
    for rank, tasks in enumerate(zero_bubble(ranks, micro_batches)):
        kept = [task._replace(kind="B") if task.kind == "I" else task for task in tasks if task.kind != "W"]
        assert kept == plain[rank]
        assert [task.micro_batch for task in tasks if task.kind == "W"] == list(range(micro_batches))
        held = 0
        for task in tasks:
            held += {"F": 1, "I": 0, "W": -1}[task.kind]
            assert held <= ranks


def test_splitting_the_backward_pass_lets_the_next_rank_begin_sooner() -> None:
    whole = [[Task(0, "F", 0), Task(0, "B", 0)], [Task(1, "F", 0), Task(1, "B", 0)]]
    split = [
        [Task(0, "F", 0), Task(0, "I", 0), Task(0, "W", 0)],
        [Task(1, "F", 0), Task(1, "I", 0), Task(1, "W", 0)],
    ]
    assert (makespan(whole), makespan(split)) == (6, 5)


def test_an_order_in_which_ranks_wait_indefinitely_is_an_error() -> None:
    with pytest.raises(ValueError, match="wait for one another"):
        makespan([[Task(0, "B", 0), Task(0, "F", 0)], [Task(1, "F", 0), Task(1, "B", 0)]])


def test_as_in_the_paper() -> None:
    """Figure 4 of Narayanan et al. (2021), its first four micro-batches, on the first and the last of two stages."""
    order = one_forward_one_backward(2, 4)
    first = "".join(f"{kind}{number}" for _, kind, number in order[0])
    last = "".join(f"{kind}{number}" for _, kind, number in order[1])
    assert first == "F0F1B0F2B1F3B2B3"
    assert last == "F0B0F1B1F2B2F3B3"


@given(st.integers(1, 8), st.integers(1, 12))
def test_every_stage_ends_and_holds_no_more_than_the_stages_behind_it(stages: int, micro_batches: int) -> None:
    queues = one_forward_one_backward(stages, micro_batches)
    done: set[tuple[str, int, int]] = set()

    def ready(place: int, kind: str, number: int) -> bool:
        if kind == "F":
            return place == 0 or ("F", place - 1, number) in done
        return ("F", place, number) in done and (place == stages - 1 or ("B", place + 1, number) in done)

    while any(queues):
        runnable = [place for place in range(stages) if queues[place] and ready(*queues[place][0])]
        assert runnable, "every stage waits for another"
        for place in runnable:
            _, kind, number = queues[place].pop(0)
            done.add((kind, place, number))
            held = sum((("F", place, one) in done) - (("B", place, one) in done) for one in range(micro_batches))
            assert held <= stages - place
    assert len(done) == 2 * stages * micro_batches


@pytest.mark.parametrize("place", range(3))
def test_both_kinds_take_the_micro_batches_in_order(place: int) -> None:
    actions = one_forward_one_backward(3, 5)[place]
    for kind in ("F", "B"):
        assert [number for _, one, number in actions if one == kind] == list(range(5))


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
    assert cut_indices([("b", "beginning"), ("c", "end")], ["a", "b", "c", "d"]) == [1, 3]


@pytest.mark.parametrize(
    ("cuts", "expected"),
    [
        ([("a", "beginning")], "no block a to cut before; valid: b, c$"),
        ([("c", "end")], "no block c to cut after; valid: a, b$"),
        ([("e", "end")], "no block e to cut after"),
        ([("c", "beginning"), ("b", "beginning")], "in the model's order"),
        ([("b", "beginning"), ("b", "beginning")], "at most once"),
        ([("a", "end"), ("b", "beginning")], "at most once"),
    ],
)
def test_cuts_that_the_model_cant_have_are_refused(cuts: list[tuple[str, Side]], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        cut_indices(cuts, ["a", "b", "c"])


def test_a_refused_cut_lists_at_most_64_names() -> None:
    with pytest.raises(InputError) as caught:
        cut_indices([("head", "beginning")], [f"layers.{index}" for index in range(1000)])
    assert str(caught.value).endswith("layers.62, layers.63, …, layers.999")
    assert str(caught.value).count("layers.") == 64
