# pyright: standard
"""Chunks of rows are encoded as records of numbers."""

import numpy as np
import pyarrow as pa

from rolecall.kit.tables.columns import PADDING, Columns
from rolecall.kit.tables.encoding import FIRST, MISSING, UNKNOWN, IdColumn, NumberColumn
from rolecall.kit.tables.records import bucket_ids, encode, normalized, scaled, text_ids
from rolecall.kit.tables.rows import Rows, Values

from .tables import table

WORDS = IdColumn("c", "dictionary", 0, FIRST + 2, 2, "|", ["a", "b"], [])
BUCKETS = IdColumn("n", "buckets", 4, FIRST + 2, 1, None, [], [2.0])
NUMBER = NumberColumn("n", 1.0, 2.0, log=False)


def test_a_record_has_ids_numbers_and_label() -> None:
    columns = Columns((WORDS, BUCKETS), (NUMBER,))
    words = Values(pa.array(["b", "a", "x"]), np.array([0, 0, 1]), np.array([0, 1, 0]))
    number = np.array([3.0, np.nan, 1.0])
    rows = Rows(np.arange(3), np.array([1, 0, 1], np.float32), [words], [number, number])
    numeric = ["n", {"column": "n", "transform": "buckets"}]
    categorical = [{"column": "c", "separator": "|", "max_values": 2}]
    records = encode(columns, rows, table("a", categorical=categorical, numeric=numeric))
    assert records["ids"].tolist() == [
        [FIRST + 1, FIRST, 4 + FIRST + 1],
        [UNKNOWN, PADDING, 4 + MISSING],
        [MISSING, PADDING, 4 + FIRST],
    ]
    assert records["numbers"].tolist() == [[1.0], [0.0], [0.0]]
    assert records["label"].tolist() == [1.0, 0.0, 1.0]


def test_ids_of_texts_and_numbers() -> None:
    assert text_ids(WORDS, pa.array(["b", "x", "a"])).tolist() == [FIRST + 1, UNKNOWN, FIRST]
    hashed = IdColumn("c", "hash", 0, FIRST + 5, 1, None, [], [])
    ids = text_ids(hashed, pa.array(["a", "b", "a"]))
    assert ids[0] == ids[2]
    assert ((ids >= FIRST) & (ids < FIRST + 5)).all()
    assert bucket_ids(BUCKETS, np.array([1.9, 2.0, np.nan])).tolist() == [FIRST, FIRST + 1, MISSING]


def test_numbers_are_standardized_after_the_logarithm() -> None:
    numbers = np.array([-3.0, 0.0, np.nan])
    np.testing.assert_allclose(scaled(numbers, log=True)[:2], [-np.log(4.0), 0.0])
    np.testing.assert_array_equal(scaled(numbers, log=False), numbers)
    column = NumberColumn("n", 1.0, 2.0, log=True)
    np.testing.assert_allclose(normalized(column, numbers), [(-np.log(4.0) - 1) / 2, -0.5, 0.0])
