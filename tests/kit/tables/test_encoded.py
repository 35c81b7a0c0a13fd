"""Encoded tables are read from disk as they were written."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from rolecall.kit.tables.columns import Columns
from rolecall.kit.tables.encoded import EncodedTable, load_table, store_table
from rolecall.kit.tables.encoding import FIRST, IdColumn, NumberColumn

COLUMNS = Columns(
    (IdColumn("c", "dictionary", 0, FIRST + 2, 1, None, ["a", "é"], []),), (NumberColumn("n", 1.0, 2.0, log=True),)
)


def stored(folder: Path) -> EncodedTable:
    records = np.zeros(3, COLUMNS.record)
    records["label"] = [1, 0, 1]
    records.tofile(folder / "train")
    table = EncodedTable(folder, COLUMNS, {"train": 3, "validation": 0}, 2, ("low", "high"), "hash of the rows")
    store_table(table)
    return table


def test_a_stored_table_is_loaded_unchanged(tmp_path: Path) -> None:
    table = stored(tmp_path)
    loaded = load_table(tmp_path)
    assert loaded == table
    assert loaded.fingerprint == table.fingerprint
    assert loaded.records("train")["label"].tolist() == [1, 0, 1]
    assert loaded.records("validation").shape == (0,)


def test_the_fingerprint_is_about_dictionaries_classes_counts_and_rows(tmp_path: Path) -> None:
    table = stored(tmp_path)
    (column,), (number,) = COLUMNS.ids, COLUMNS.numbers
    others = [
        replace(table, columns=Columns((replace(column, values=["a", "b"]),), COLUMNS.numbers)),
        replace(table, classes=("high", "low")),
        replace(table, rows={"train": 3, "validation": 1}),
        replace(table, bad_rows=0),
        replace(table, digest="another"),
    ]
    assert len({table.fingerprint, *(other.fingerprint for other in others)}) == 6
    # The mean may differ in the last bit between CPU types.
    nearly = replace(table, columns=Columns(COLUMNS.ids, (replace(number, mean=1.0000000001),)))
    assert nearly.fingerprint == table.fingerprint
