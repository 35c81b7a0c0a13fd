# pyright: standard
"""Fits dictionaries, means and quantiles to the training rows, in one pass and bounded memory.

(A dictionary's memory grows with its distinct values; use `ids: hash` for columns with very many.)
"""
# pyarrow.compute creates its functions at import.
# pyright: reportAttributeAccessIssue=false

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rolecall.kit.data_order import splitmix64
from rolecall.kit.tables.columns import Columns
from rolecall.kit.tables.encoding import FIRST, IdColumn, NumberColumn
from rolecall.kit.tables.params import Categorical, Data, Numeric
from rolecall.kit.tables.records import scaled
from rolecall.kit.tables.rows import Rows

_SAMPLE_SIZE = 100_000


class Fit:
    """Fits the columns to chunks of training rows."""

    def __init__(self, data: Data, seed: int) -> None:
        self._key = seed
        self._dictionaries = [_Dictionary(column) for column in data.categorical]
        self._numeric = [
            _Moments(column) if column.transform == "normalize" else _Quantiles(column) for column in data.numeric
        ]

    def add(self, rows: Rows) -> None:
        """Update the statistics with a chunk of training rows."""
        for dictionary, values in zip(self._dictionaries, rows.categorical, strict=True):
            dictionary.add(values.texts)
        keys = splitmix64(rows.numbers.astype(np.uint64), self._key)
        for fitter, numbers in zip(self._numeric, rows.numeric, strict=True):
            known = ~np.isnan(numbers)
            fitter.add(numbers[known], keys[known])

    def columns(self) -> Columns:
        fitters = (*self._dictionaries, *(one for one in self._numeric if isinstance(one, _Quantiles)))
        ids: list[IdColumn] = []
        for fitter in fitters:
            ids.append(fitter.column(ids[-1].offset + ids[-1].size if ids else 0))
        return Columns(tuple(ids), tuple(one.column() for one in self._numeric if isinstance(one, _Moments)))


@dataclass
class _Dictionary:
    given: Categorical
    counts: Counter[str] = field(default_factory=Counter[str])

    def add(self, texts: pa.Array) -> None:
        if self.given.ids == "dictionary":
            values, counts = pc.value_counts(texts).flatten()
            self.counts.update(dict(zip(values.to_pylist(), counts.to_pylist(), strict=True)))

    def column(self, offset: int) -> IdColumn:
        given = self.given
        kept = [value for value, count in self.counts.items() if count >= given.min_count]
        values = sorted(kept, key=lambda value: (-self.counts[value], value))
        size = FIRST + (given.buckets or len(values))
        return IdColumn(given.column, given.ids, offset, size, given.max_values, given.separator, values, [])


@dataclass
class _Quantiles:
    """Quantiles of the rows with the smallest hash keys: a sample that does not depend on the chunks."""

    given: Numeric
    numbers: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    keys: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))

    def add(self, numbers: NDArray[np.float64], keys: NDArray[np.uint64]) -> None:
        self.numbers, self.keys = np.concatenate([self.numbers, numbers]), np.concatenate([self.keys, keys])
        if len(self.keys) > _SAMPLE_SIZE:
            kept = np.argpartition(self.keys, _SAMPLE_SIZE)[:_SAMPLE_SIZE]
            self.numbers, self.keys = self.numbers[kept], self.keys[kept]

    def column(self, offset: int) -> IdColumn:
        shares = np.arange(1, self.given.bucket_count) / self.given.bucket_count
        bounds = np.unique(np.quantile(self.numbers, shares)).tolist() if len(self.numbers) else []
        return IdColumn(self.given.column, "buckets", offset, FIRST + len(bounds) + 1, 1, None, [], bounds)


@dataclass
class _Moments:
    """Mean and sum of squared deviations, merged chunk by chunk (Chan, Golub and LeVeque, 1979)."""

    given: Numeric
    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, numbers: NDArray[np.float64], keys: NDArray[np.uint64]) -> None:
        if not len(numbers):
            return
        values = scaled(numbers, log=self.given.log)
        count, mean, delta = self.count + len(values), float(values.mean()), float(values.mean()) - self.mean
        self.squares += float(np.square(values - mean).sum()) + delta**2 * self.count * len(values) / count
        self.mean += delta * len(values) / count
        self.count = count

    def column(self) -> NumberColumn:
        deviation = float(np.sqrt(self.squares / self.count)) if self.count else 0.0
        return NumberColumn(self.given.column, self.mean, deviation or 1.0, self.given.log)
