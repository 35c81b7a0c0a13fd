"""How long to wait before trying again: delays that double up to a bound."""

import random
from collections.abc import Iterator
from itertools import count

_FULLY_GROWN = 60
"""Doublings after which every bound in use is reached; a float can't hold 2 ** 1024."""


def delay_s(failures: int, first: float, most: float) -> float:
    """Seconds to wait after the given number of failures in a row: `first` after one, never more than `most`."""
    return min(most, first * 2 ** min(failures - 1, _FULLY_GROWN))


def delays_s(first: float = 0.1, most: float = 2.0, jitter: float = 0.5) -> Iterator[float]:
    """The delays after one, two, … failures, without end.

    Each is shortened at random by up to the share `jitter`, so that programs that lost the same server don't all come
    back at once.
    """
    for failures in count(1):
        yield delay_s(failures, first, most) * random.uniform(1 - jitter, 1)  # noqa: S311 - not a secret
