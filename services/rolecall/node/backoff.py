"""How long to wait before trying again."""

import random
from collections.abc import Iterator


def delays_s(first: float = 0.1, most: float = 2.0) -> Iterator[float]:
    """Doubling delays with jitter, so that many nodes that lost the same master don't all come back at once."""
    delay = first
    while True:
        yield delay * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret
        delay = min(most, 2 * delay)
