"""Seeds of all random numbers, derived from the job's seed, a purpose and a position.

So random numbers don't depend on earlier ones, and a resumed job gets the same as an uninterrupted one.
"""

from enum import IntEnum

import numpy as np


class RandomStream(IntEnum):
    """The purpose of a seed."""

    WEIGHTS = 0
    ENVIRONMENTS = 1
    ACTIONS = 2
    MINIBATCHES = 3


def seed_of(seed: int, stream: RandomStream, *position: int) -> int:
    """The seed of a stream at a position, such as (observer, update); in [0, 2^63)."""
    return seeds_of(seed, stream, *position, count=1)[0]


def seeds_of(seed: int, stream: RandomStream, *position: int, count: int) -> list[int]:
    """`count` independent seeds for one position."""
    words = np.random.SeedSequence([seed, int(stream), *position]).generate_state(count, np.uint64)
    return [int(word >> np.uint64(1)) for word in words]
