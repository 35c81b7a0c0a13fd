"""Shuffled data order: the same global batches for any number of trainers.

Each epoch's permutation is computed on demand, never stored: a Feistel network over the bits of the row numbers (Luby
and Rackoff, 1988), with cycle walking while the result is outside the range (Black and Rogaway, 2002).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 6


@dataclass(frozen=True, slots=True)
class DataOrder:
    """`rows` rows in batches of `batch_size`; a position is one integer, the number of preceding global batches.

    The last batch of an epoch is short if `batch_size` doesn't divide `rows`.
    """

    rows: int
    batch_size: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        """Global batches in one pass."""
        return -(-self.rows // self.batch_size)

    def batch_rows(self, step: int) -> int:
        """Rows in global batch `step` of an epoch, over all trainers."""
        return min(self.batch_size, self.rows - step * self.batch_size)

    def share(self, epoch: int, step: int, rank: int, world: int, rows: int | None = None) -> NDArray[np.int64]:
        """The row numbers [n] of trainer `rank` of `world` in global batch `step` of `epoch`; may be empty.

        With `rows`, only those in the first `rows` rows of the batch.
        """
        start = step * self.batch_size
        mine = share_of(self.batch_rows(step) if rows is None else rows, rank, world)
        return permutation(np.arange(start + mine.start, start + mine.stop), self.rows, self.seed, epoch)


def held_out(numbers: NDArray[np.int64], share: float, seed: int) -> NDArray[np.bool_]:
    """A mask [b] of the row numbers in a validation split of `share` of all rows, by a seeded hash of each number."""
    return splitmix64(numbers.astype(np.uint64), derive_seed(seed, 3)) < np.uint64(int(share * 2**64))


def share_of(rows: int, rank: int, world: int) -> "slice[int]":
    """The contiguous share of `rank` of `world` in `rows` rows; sizes differ by at most one row."""
    return slice(rows * rank // world, rows * (rank + 1) // world)


def permutation(positions: NDArray[np.int64], rows: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The row numbers, in [0, rows), at the given positions of the epoch's permutation."""
    half = np.uint64(max(1, ((rows - 1).bit_length() + 1) // 2))
    keys = splitmix64(np.arange(_ROUNDS, dtype=np.uint64), derive_seed(seed, epoch))
    found = _feistel(positions.astype(np.uint64), half, keys)
    outside = np.flatnonzero(found >= rows)
    while outside.size:
        found[outside] = _feistel(found[outside], half, keys)
        outside = outside[found[outside] >= rows]
    return found.astype(np.int64)


def splitmix64(numbers: NDArray[np.uint64], key: int) -> NDArray[np.uint64]:
    """64-bit hashes of the numbers: the finalizer of SplitMix64 (Steele, Lea and Flood, 2014)."""
    bits = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(key)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def derive_seed(seed: int, purpose: int) -> int:
    """A 64-bit key from a seed and a purpose, such as the epoch."""
    return int(splitmix64(splitmix64(np.array([seed], np.uint64), 0), purpose)[0])


def _feistel(numbers: NDArray[np.uint64], half: np.uint64, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = numbers >> half, numbers & mask
    for key in keys:
        left, right = right, left ^ (splitmix64(right, int(key)) & mask)
    return left << half | right
