"""The tournament: every pair once, nobody twice in a round; and whom stalls are laid at."""

from itertools import combinations

import pytest

from rolecall.network.pairs import blamed, rounds


@pytest.mark.parametrize("count", [*range(1, 10), 16, 33])
def test_every_pair_meets_once_in_as_few_rounds_as_can_be(count: int) -> None:
    plan = rounds(count)
    assert sorted(pair for pairs in plan for pair in pairs) == list(combinations(range(count), 2))
    assert all(len({player for pair in pairs for player in pair}) == 2 * len(pairs) for pairs in plan)
    assert len(plan) == (count - 1 if count % 2 == 0 else count)


def test_one_stall_blames_nobody_and_the_second_who_was_in_both() -> None:
    assert blamed([("a", "b"), ("c", "d")]) == {}
    assert blamed([("a", "b"), ("c", "a")]) == {"a": ["b", "c"]}


def test_who_met_two_bad_ones_is_cleared_once_these_have_met_others() -> None:
    stalls = [("good", "bad"), ("good", "worse"), ("bad", "x"), ("y", "worse"), ("bad", "z"), ("worse", "z")]
    assert blamed(stalls).keys() == {"bad", "worse"}
