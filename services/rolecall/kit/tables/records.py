# pyright: standard
"""The vectorized encoding of rows as records of numbers."""
# pyarrow.compute creates its functions at import.
# pyright: reportAttributeAccessIssue=false

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rolecall.kit.tables.columns import PADDING, Columns
from rolecall.kit.tables.encoding import FIRST, MISSING, UNKNOWN, IdColumn, NumberColumn, stable_hash
from rolecall.kit.tables.params import Data
from rolecall.kit.tables.rows import Rows, Values


def encode(columns: Columns, rows: Rows, data: Data) -> NDArray[np.void]:
    """The rows as records [b] of the dtype `Columns.record`."""
    records = np.zeros(len(rows.labels), columns.record)
    records["label"] = rows.labels
    _encode_ids(columns, rows, data, records["ids"])
    scaled = [
        values for values, given in zip(rows.numeric, data.numeric, strict=True) if given.transform == "normalize"
    ]
    for index, (column, values) in enumerate(zip(columns.numbers, scaled, strict=True)):
        records["numbers"][:, index] = normalized(column, values)
    return records


def _encode_ids(columns: Columns, rows: Rows, data: Data, out: NDArray[np.int64]) -> None:
    out[:] = PADDING
    bucketed = [
        values for values, given in zip(rows.numeric, data.numeric, strict=True) if given.transform == "buckets"
    ]
    start = 0
    for column, given in zip(columns.ids, (*rows.categorical, *bucketed), strict=True):
        out[:, start] = column.offset + MISSING
        if isinstance(given, Values):
            out[given.rows, start + given.positions] = column.offset + text_ids(column, given.texts)
        else:
            out[:, start] = column.offset + bucket_ids(column, given)
        start += column.width


def text_ids(column: IdColumn, texts: pa.Array) -> NDArray[np.int64]:
    """The ids [n] of values, relative to their column."""
    if column.kind == "dictionary":
        found = pc.fill_null(pc.index_in(texts, pa.array(column.values, pa.string())), UNKNOWN - FIRST)
        return found.to_numpy(zero_copy_only=False).astype(np.int64) + FIRST
    distinct = texts.dictionary_encode()
    hashes = np.fromiter(map(stable_hash, distinct.dictionary.to_pylist()), np.uint64, len(distinct.dictionary))
    buckets = (hashes % np.uint64(column.size - FIRST)).astype(np.int64) + FIRST
    return buckets[distinct.indices.to_numpy()]


def bucket_ids(column: IdColumn, numbers: NDArray[np.float64]) -> NDArray[np.int64]:
    """The ids [b] of numbers, relative to their column."""
    ids = np.searchsorted(np.array(column.bounds), numbers, side="right") + FIRST
    return np.where(np.isnan(numbers), MISSING, ids)


def normalized(column: NumberColumn, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """The numbers [b], standardized by the training rows' mean and deviation; missing values become 0."""
    return np.nan_to_num((scaled(numbers, log=column.log) - column.mean) / column.deviation, nan=0.0)


def scaled(numbers: NDArray[np.float64], *, log: bool) -> NDArray[np.float64]:
    """The numbers, or with `log` sign(x) · log(1 + |x|)."""
    return np.sign(numbers) * np.log1p(np.abs(numbers)) if log else numbers
