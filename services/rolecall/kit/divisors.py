"""Divisors, and the nearest valid values for error messages. Torch-free."""

from collections.abc import Sequence
from math import isqrt


def divisors(number: int) -> list[int]:
    """All divisors of `number`, from 1 up, in time with its square root: 65,536 steps (milliseconds) for 2^32."""
    small = [one for one in range(1, isqrt(number) + 1) if number % one == 0]
    return small + [number // one for one in reversed(small) if one * one != number]


def nearest(valid: Sequence[int], given: int) -> str:
    """The nearest members of `valid` below and above `given`, as text; `valid` must not be empty."""
    below = max((one for one in valid if one < given), default=None)
    above = min((one for one in valid if one > given), default=None)
    return " or ".join(str(one) for one in (below, above) if one is not None)


def nearest_multiples(of: int, given: int) -> str:
    """The nearest positive multiples of `of` below and above `given`, which isn't one, as text."""
    below = given // of * of
    return f"{below} or {below + of}" if below else f"{below + of}"
