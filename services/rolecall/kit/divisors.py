"""Divisors, and the legal numbers nearest to one that is not legal. Torch-free."""

from collections.abc import Sequence
from math import isqrt


def divisors(number: int) -> list[int]:
    """All divisors of `number`, from 1 up, in time with its square root: 65,536 steps (milliseconds) for 2^32."""
    small = [one for one in range(1, isqrt(number) + 1) if number % one == 0]
    return small + [number // one for one in reversed(small) if one * one != number]


def nearest(legal: Sequence[int], given: int) -> str:
    """The members of `legal` next below and next above `given`, in words; `legal` has one or more."""
    below = max((one for one in legal if one < given), default=None)
    above = min((one for one in legal if one > given), default=None)
    return " or ".join(str(one) for one in (below, above) if one is not None)


def nearest_multiples(of: int, given: int) -> str:
    """The positive multiples of `of` next below and next above `given`, which is none, in words."""
    below = given // of * of
    return f"{below} or {below + of}" if below else f"{below + of}"
