"""The theory of schedules, against the papers' formulas."""

import pytest

from rolecall.workloads.transformer_pipeline.bubble import (
    Task,
    bubble,
    fill_and_drain,
    makespan,
    one_forward_one_backward,
)


@pytest.mark.parametrize("ranks", [2, 4, 7])
@pytest.mark.parametrize("micro_batches", [8, 32])
def test_gpipe_and_1f1b_lose_what_their_papers_say(ranks: int, micro_batches: int) -> None:
    formula = (ranks - 1) / (micro_batches + ranks - 1)
    assert bubble(fill_and_drain(ranks, micro_batches)) == pytest.approx(formula)
    assert bubble(one_forward_one_backward(ranks, micro_batches)) == pytest.approx(formula)


def test_splitting_the_backward_pass_lets_the_next_rank_begin_sooner() -> None:
    whole = [[Task(0, "F", 0), Task(0, "B", 0)], [Task(1, "F", 0), Task(1, "B", 0)]]
    split = [
        [Task(0, "F", 0), Task(0, "I", 0), Task(0, "W", 0)],
        [Task(1, "F", 0), Task(1, "I", 0), Task(1, "W", 0)],
    ]
    assert (makespan(whole), makespan(split)) == (6, 5)


def test_an_order_in_which_ranks_wait_for_ever_is_an_error() -> None:
    with pytest.raises(ValueError, match="wait for one another"):
        makespan([[Task(0, "B", 0), Task(0, "F", 0)], [Task(1, "F", 0), Task(1, "B", 0)]])
