"""Files become encoded tables: built once, and the same for every worker that reads the same files."""

import logging
from pathlib import Path

import numpy as np
import pytest

from rolecall.kit.data_order import held_out
from rolecall.kit.tables.encoded import SPLITS, EncodedTable
from rolecall.kit.tables.opening import open_table_source
from rolecall.spec.errors import InputError

from .tables import ROWS, csv, table


def opened(folder: Path, *rows: str, seed: int = 0, **data: object) -> EncodedTable:
    path = csv(folder / "rows.csv", *(rows or ROWS))
    return open_table_source(table(path, **data), seed).encoded_table(folder / "cache")


def test_records_are_those_of_the_rows(tmp_path: Path) -> None:
    encoded = opened(tmp_path)
    assert encoded.rows == {"train": 6, "validation": 0, "test": 0}
    assert encoded.records("train")["label"].tolist() == [1, 0, 1, 0, 1, 0]
    assert len(encoded.records("validation")) == 0


def test_a_table_is_built_once_for_the_same_files_and_parameters(tmp_path: Path) -> None:
    first = opened(tmp_path)
    source = open_table_source(table(tmp_path / "rows.csv"), 0)
    again = source.encoded_table(tmp_path / "cache")
    assert again == first
    assert open_table_source(table(tmp_path / "rows.csv"), 1).key != source.key
    assert open_table_source(table(tmp_path / "rows.csv", max_bad_rows=1), 0).key != source.key


def test_the_hold_out_separates_the_rows(tmp_path: Path) -> None:
    rows = [f"{number % 2},a,{number}" for number in range(200)]
    encoded = opened(tmp_path, *rows, validation=0.25)
    source = open_table_source(table(tmp_path / "rows.csv", validation=0.25), 0)
    numbers = encoded.records("train")["label"].size
    held = held_out(np.arange(200), 0.25, 0)
    assert (numbers, encoded.rows["validation"]) == (200 - held.sum(), held.sum())
    assert 25 < held.sum() < 75
    assert encoded.fingerprint == source.encoded_table(tmp_path / "other").fingerprint
    assert encoded.fingerprint != opened(tmp_path, *rows[:-1], validation=0.25).fingerprint


SWAPPED = {
    "labels": ("0,a,1", "1,b,2", "1,a,3", "0,b,4"),
    "values": ("1,b,1", "0,a,2", "1,a,3", "0,b,4"),
    "numbers": ("1,a,2", "0,b,1", "1,a,3", "0,b,4"),
}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("transform", ["normalize", "buckets"])
@pytest.mark.parametrize("swapped", SWAPPED)
def test_tables_that_differ_in_two_values_have_other_fingerprints(
    tmp_path: Path, split: str, transform: str, swapped: str
) -> None:
    rows = ("1,a,1", "0,b,2", "1,a,3", "0,b,4")
    found: list[EncodedTable] = []
    for node, edited in (("a", rows), ("b", rows), ("c", SWAPPED[swapped])):
        (tmp_path / node).mkdir()
        paths = {name: [str(csv(tmp_path / node / name, *(edited if name == split else rows)))] for name in SPLITS}
        data = table(paths.pop("train"), format="csv", numeric=[{"column": "n", "transform": transform}], **paths)
        found.append(open_table_source(data, 0).encoded_table(tmp_path / node / "cache"))
    first, same, other = found
    assert (first.rows, first.columns.ids) == (other.rows, other.columns.ids)
    assert first.fingerprint == same.fingerprint != other.fingerprint


def test_the_fingerprint_does_not_depend_on_the_chunks(tmp_path: Path) -> None:
    csv(tmp_path / "1.csv", *ROWS[:2])
    csv(tmp_path / "2.csv", *ROWS[2:])
    parts = open_table_source(table([str(tmp_path / "1.csv"), str(tmp_path / "2.csv")]), 0)
    assert parts.encoded_table(tmp_path / "cache").fingerprint == opened(tmp_path).fingerprint


def test_streamed_training_rows_are_counted_and_not_stored(tmp_path: Path) -> None:
    encoded = opened(tmp_path, stream=True, validation=str(csv(tmp_path / "held.csv", "1,a,1")))
    assert encoded.rows == {"train": 6, "validation": 1, "test": 0}
    assert not (encoded.folder / "train").exists()


def test_skipped_rows_are_logged_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        encoded = opened(tmp_path, *ROWS, "2,a,1", max_bad_rows=1)
    assert encoded.bad_rows == 1
    assert "skipped a row: " in caplog.text
    assert "row 8: the label y is '2', not 0 or 1; for other values, set data.label.positive" in caplog.text


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["1,a,1", "1,b,2"], "all 2 training rows are positive; check data.label"),
        (["0,a,1"], "all 1 training rows are negative"),
        ([], "the training files contain no rows; check data.train"),
    ],
)
def test_rows_of_one_class_are_an_error(tmp_path: Path, rows: list[str], message: str) -> None:
    path = csv(tmp_path / "a.csv", *rows)
    with pytest.raises(InputError, match=message):
        open_table_source(table(path), 0).encoded_table(tmp_path / "cache")


def test_every_file_must_have_the_columns(tmp_path: Path) -> None:
    rows, test = csv(tmp_path / "rows.csv", *ROWS), csv(tmp_path / "test.csv", "1,a", header="y,c")
    open_table_source(table(rows), 0).require_columns()
    with pytest.raises(InputError, match=r"test\.csv has no column 'n'"):
        open_table_source(table(rows, test=str(test)), 0).require_columns()
