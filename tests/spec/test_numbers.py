"""Numbers are written the same in each command and on the page."""

import math

import pytest

from rolecall.spec.numbers import bound, counted, number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.92301, "0.9230"),
        (21.5, "21.50"),
        (6.50461, "6.505"),
        (0.000012345, "1.234e-05"),
        (3.0, "3"),
        (-0.0, "0"),
        (999.97, "1000"),
        (14420.2, "14,420"),
        (25e6, "25,000,000"),
        (3.2456e24, "3.246e+24"),
        (math.nan, "nan"),
        (12345, "12,345"),
        (True, "True"),
        ("x", "x"),
        (None, "not finite"),
    ],
)
def test_a_number_has_four_significant_digits_or_no_decimals(value: object, text: str) -> None:
    assert number(value) == text


def test_a_whole_number_of_json_can_have_any_size() -> None:
    assert number(10**400).count(",") == 400 // 3


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-100, "-100"),
        (4096, "4,096"),
        (1_000_000, "1,000,000"),
        (2**20, "2^20"),
        (2**31 - 1, "2^31 - 1"),
        (-(2**63), "-2^63"),
        (10**9, "10^9"),
        (1e12, "10^12"),
        (-1e308, "-10^308"),
        (2.5e9, "2,500,000,000"),
        (0.5, "0.5"),
        (1e6, "1,000,000"),
        (math.inf, "inf"),
    ],
)
def test_a_bound_has_separators_or_is_a_large_power(value: float, text: str) -> None:
    assert bound(value) == text


def test_a_bound_can_have_any_size() -> None:
    assert bound(10**400 + 1).count(",") == 400 // 3


def test_counts_have_a_plural_and_separators() -> None:
    assert [counted(count, "row") for count in (0, 1, 4000)] == ["0 rows", "1 row", "4,000 rows"]
    assert [counted(count, "micro-batch") for count in (1, 2)] == ["1 micro-batch", "2 micro-batches"]
