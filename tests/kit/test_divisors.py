"""Divisors and nearest valid numbers, compared with the definition."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolecall.kit.divisors import divisors, nearest, nearest_multiples


@given(st.integers(1, 2000))
def test_divisors_are_all_that_divide(number: int) -> None:
    assert divisors(number) == [one for one in range(1, number + 1) if number % one == 0]


@pytest.mark.parametrize(("given_", "expected"), [(0, "1"), (5, "4 or 6"), (6, "4 or 12"), (13, "12")])
def test_the_nearest_are_next_below_and_next_above(given_: int, expected: str) -> None:
    assert nearest(divisors(12), given_) == expected


@pytest.mark.parametrize(("of", "given_", "expected"), [(3, 128, "126 or 129"), (3, 2, "3")])
def test_the_nearest_multiples_are_positive(of: int, given_: int, expected: str) -> None:
    assert nearest_multiples(of, given_) == expected
