"""Columns fitted to the training rows, and the layout of the records of numbers that rows are encoded as."""

from dataclasses import dataclass

import numpy as np

from rolecall.kit.tables.encoding import IdColumn, NumberColumn

PADDING = -1
"""Fills the positions of a row with fewer values than its column's width; never looked up."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The model's input columns, fitted to the training rows."""

    ids: tuple[IdColumn, ...]
    """Categorical columns, then bucketed numeric columns, each in the parameters' order."""
    numbers: tuple[NumberColumn, ...]
    """Normalized columns, in the parameters' order."""

    @property
    def num_ids(self) -> int:
        """The rows of the embedding table."""
        return self.ids[-1].offset + self.ids[-1].size

    @property
    def width(self) -> int:
        """The number of ids in one row, including padding."""
        return sum(column.width for column in self.ids)

    @property
    def record(self) -> np.dtype[np.void]:
        """The dtype of an encoded row in memory and on disk; its size is a multiple of 8 bytes."""
        labels_at = 8 * self.width + 4 * len(self.numbers)
        return np.dtype(
            {
                "names": ["ids", "numbers", "label"],
                "formats": [("<i8", (self.width,)), ("<f4", (len(self.numbers),)), "<f4"],
                "offsets": [0, 8 * self.width, labels_at],
                "itemsize": -(-(labels_at + 4) // 8) * 8,
            }
        )
