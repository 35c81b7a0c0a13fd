"""Seeds of everything that is drawn, each derived from the job's and from where it is drawn.

So nothing that is drawn depends on what was drawn before it: a resumed job draws what an uninterrupted one would.
"""

from enum import IntEnum

import numpy as np


class Stream(IntEnum):
    """What a seed is for."""

    WEIGHTS = 0
    ENVIRONMENTS = 1
    ACTIONS = 2
    MINIBATCHES = 3


def seed_of(seed: int, stream: Stream, *place: int) -> int:
    """The seed of one stream at one place (an observer, an update), 0 to 2^63 - 1."""
    return seeds_of(seed, stream, *place, count=1)[0]


def seeds_of(seed: int, stream: Stream, *place: int, count: int) -> list[int]:
    """As many independent seeds for one place."""
    words = np.random.SeedSequence([seed, int(stream), *place]).generate_state(count, np.uint64)
    return [int(word >> np.uint64(1)) for word in words]
