"""Numbers are written the same in each command and on the page."""

import math

import pytest

from rolecall.spec.numbers import number


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
    ],
)
def test_a_number_has_four_significant_digits_or_no_decimals(value: object, text: str) -> None:
    assert number(value) == text


def test_a_whole_number_of_json_can_have_any_size() -> None:
    assert number(10**400).count(",") == 400 // 3
