"""The tournament: every pair once, nobody twice in a round."""

from itertools import combinations

import pytest

from rolecall.workloads.preflight.pairs import rounds


@pytest.mark.parametrize("count", [*range(1, 10), 16, 33])
def test_every_pair_meets_once_in_as_few_rounds_as_can_be(count: int) -> None:
    plan = rounds(count)
    assert sorted(pair for pairs in plan for pair in pairs) == list(combinations(range(count), 2))
    assert all(len({player for pair in pairs for player in pair}) == 2 * len(pairs) for pairs in plan)
    assert len(plan) == (count - 1 if count % 2 == 0 else count)
