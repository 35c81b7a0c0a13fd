"""The delays between retries, which double up to a limit."""

import random
from collections.abc import Iterator
from itertools import count

_FULLY_GROWN = 60
"""The number of doublings after which all limits are reached; a float can't hold 2 ** 1024."""


def delay_s(failures: int, first: float, most: float) -> float:
    """The delay in seconds after consecutive failures: `first` after one, at most `most`."""
    return min(most, first * 2 ** min(failures - 1, _FULLY_GROWN))


def delays_s(first: float = 0.1, most: float = 2.0, jitter: float = 0.5) -> Iterator[float]:
    """The infinite series of delays after one, two, … failures.

    Each is shortened at random by up to the share `jitter`, so that the clients of a server don't all retry at the same
    time.
    """
    for failures in count(1):
        yield delay_s(failures, first, most) * random.uniform(1 - jitter, 1)  # noqa: S311 - not a secret
