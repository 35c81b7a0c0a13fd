"""The size of the table that fitted columns need, and the layout of their records."""

import numpy as np

from rolecall.kit.tables.columns import Columns
from rolecall.kit.tables.encoding import FIRST, IdColumn, NumberColumn

WORDS = IdColumn("c", "dictionary", 0, FIRST + 2, 2, "|", ["a", "b"], [])
BUCKETS = IdColumn("n", "buckets", 4, FIRST + 2, 1, None, [], [2.0])
NUMBER = NumberColumn("n", 1.0, 2.0, log=False)


def test_columns_share_a_table_and_a_record() -> None:
    columns = Columns((WORDS, BUCKETS), (NUMBER,))
    assert (columns.num_ids, columns.width) == (8, 3)
    record = np.zeros(5, columns.record)
    assert (record["ids"].shape, record["numbers"].shape, record["label"].shape) == ((5, 3), (5, 1), (5,))


def test_a_record_has_a_multiple_of_8_bytes() -> None:
    assert Columns((WORDS,), ()).record.itemsize == 24
    assert Columns((WORDS,), (NUMBER,)).record.itemsize == 24
    assert Columns((WORDS,), (NUMBER, NUMBER)).record.itemsize == 32
