"""Generates random encoded rows: categorical columns with ragged bags of values, numbers, and a label.

The rows depend only on the parameters. Every row has a hidden value in (0, 1), from which its label
follows. It is random, or for a share of the rows (`signal`) a function of the row's ids: each id has a fixed random
weight, and the normalized sum of a row's weights goes through a logistic function. A model with an embedding of each id
can learn that.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rolecall.kit.cache import build_once, require_space
from rolecall.kit.data_order import derive_seed, held_out, splitmix64
from rolecall.kit.tables.columns import PADDING, Columns
from rolecall.kit.tables.encoded import SPLITS, EncodedTable, load_table, store_table
from rolecall.kit.tables.encoding import FIRST, IdColumn, NumberColumn
from rolecall.kit.tables.params import Synthetic, SyntheticData
from rolecall.spec.errors import InputError

_LAYOUT = 2
_CHUNK_VALUES = 1 << 20
_SLOPE = 1.702
"""The slope at which a logistic function is close to the standard normal distribution function."""


def open_synthetic_table(data: SyntheticData, folder: Path) -> EncodedTable:
    """The rows of `data` in the cache `folder`, generated if missing; concurrent callers wait."""
    content = json.dumps([_LAYOUT, data.model_dump(mode="json", exclude={"synthetic": {"min_batch"}})], sort_keys=True)
    key = hashlib.sha256(content.encode()).hexdigest()[:32]
    return load_table(build_once(folder / "synthetic-tables", key, lambda draft: _build(data, draft)))


def columns_of(synthetic: Synthetic) -> Columns:
    """The columns of generated rows. Ids are hash buckets, which need no dictionary; numbers are already normalized."""
    size = FIRST + synthetic.ids
    ids = [
        IdColumn(f"c{index}", "hash", index * size, size, synthetic.max_values, None, [], [])
        for index in range(synthetic.columns)
    ]
    return Columns(tuple(ids), tuple(NumberColumn(f"n{index}", 0.0, 1.0, False) for index in range(synthetic.numbers)))


def _build(data: SyntheticData, folder: Path) -> None:
    columns = columns_of(data.synthetic)
    require_space(folder, (data.synthetic.rows + data.synthetic.test) * columns.record.itemsize)
    rows: dict[str, int] = dict.fromkeys(SPLITS, 0)
    with ExitStack() as stack:
        files = {split: stack.enter_context((folder / split).open("wb")) for split in SPLITS}
        for start, records in _chunks(data.synthetic, columns):
            numbers = np.arange(start, start + len(records))
            test = numbers >= data.synthetic.rows
            held = held_out(numbers, data.validation, data.synthetic.seed) & ~test
            for split, chosen in (("train", ~held & ~test), ("validation", held), ("test", test)):
                records[chosen].tofile(files[split])
                rows[split] += int(chosen.sum())
    if not rows["train"]:
        raise InputError(
            f"data.validation takes all {rows['validation']} generated rows; set more data.synthetic.rows, or "
            "data.validation to 0"
        )
    classes = data.label.classes
    named = tuple(map(str, classes)) if isinstance(classes, list) else ()
    store_table(EncodedTable(folder, columns, rows, 0, named))


def _chunks(synthetic: Synthetic, columns: Columns) -> Iterator[tuple[int, NDArray[np.void]]]:
    """All rows as records, in chunks of bounded size with the number of the first row."""
    seed, total = synthetic.seed, synthetic.rows + synthetic.test
    chunk_rows = max(1, _CHUNK_VALUES // (columns.width + synthetic.numbers))
    for chunk, start in enumerate(range(0, total, chunk_rows)):
        random = np.random.Generator(np.random.Philox(key=[derive_seed(seed, 4), chunk]))
        size = min(chunk_rows, total - start)
        records = np.zeros(size, columns.record)
        records["ids"] = ids = _random_ids(synthetic, columns, random, size)
        records["numbers"] = random.standard_normal((size, synthetic.numbers))
        learnable = random.random(size) < synthetic.signal
        records["label"] = _labels(synthetic, np.where(learnable, _score(ids, seed), random.random(size)))
        yield start, records


def _random_ids(synthetic: Synthetic, columns: Columns, random: np.random.Generator, rows: int) -> NDArray[np.int64]:
    """The ids [rows, width]: in each column between `min_values` and `max_values`, then padding."""
    shape = (rows, synthetic.columns, synthetic.max_values)
    offsets = np.array([column.offset for column in columns.ids])[:, None]
    if synthetic.skew:
        ids = FIRST + _skewed(random.random(shape), synthetic.ids, synthetic.skew) + offsets
    else:
        ids = random.integers(FIRST, FIRST + synthetic.ids, shape) + offsets
    counts = random.integers(synthetic.min_values, synthetic.max_values + 1, shape[:2])
    ids[np.arange(synthetic.max_values) >= counts[:, :, None]] = PADDING
    return ids.reshape(rows, columns.width)


def _skewed(uniform: NDArray[np.float64], count: int, exponent: float) -> NDArray[np.int64]:
    """Numbers below `count` from uniform ones in [0, 1), by the inverse of the Pareto distribution on [1, count + 1).

    Number k, counted from 1, has the integral of x^-exponent from k to k + 1, which is close to Zipf's k^-exponent.
    """
    power = 1.0 - exponent
    if abs(power) < 1e-9:
        values = np.exp(uniform * np.log(count + 1.0))
    else:
        values = (1.0 + uniform * ((count + 1.0) ** power - 1.0)) ** (1.0 / power)
    return np.minimum(values.astype(np.int64) - 1, count - 1)


def _score(ids: NDArray[np.int64], seed: int) -> NDArray[np.float64]:
    """The hidden values [b] that follow from the ids [b, width]: nearly uniform on (0, 1) over random rows."""
    present = ids != PADDING
    hashes = splitmix64(np.where(present, ids, 0).astype(np.uint64), derive_seed(seed, 5))
    weights = np.where(present, (hashes / 2.0**64 - 0.5) * np.sqrt(12.0), 0.0)  # mean 0, variance 1
    return 1.0 / (1.0 + np.exp(-_SLOPE * weights.sum(1) / np.sqrt(present.sum(1))))


def _labels(synthetic: Synthetic, hidden: NDArray[np.float64]) -> NDArray[np.float64]:
    if synthetic.label == "number":  # about standard normal
        inside = np.clip(hidden, 1e-9, 1 - 1e-9)
        return np.log(inside / (1.0 - inside)) / _SLOPE
    classes = 2 if synthetic.label == "binary" else synthetic.label
    return np.minimum(np.floor(hidden * classes), classes - 1)
