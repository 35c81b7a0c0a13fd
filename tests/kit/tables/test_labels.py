# pyright: standard
"""Labels with classes and labels that are numbers."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from rolecall.kit.tables.batches import open_batches
from rolecall.kit.tables.encoded import EncodedTable
from rolecall.kit.tables.opening import open_table_source
from rolecall.kit.tables.params import Data, Label
from rolecall.spec.errors import InputError

from .tables import csv, described, table


def encoded(folder: Path, label: dict[str, Any], *labels: str, **data: Any) -> EncodedTable:
    path = csv(folder / "rows.csv", *(f"{value},a,1" for value in labels))
    source = open_table_source(table(path, label={"column": "y", **label}, **data), 0)
    return source.encoded_table(folder / "cache")


def error(folder: Path, label: dict[str, Any], *labels: str) -> str:
    with pytest.raises(InputError) as caught:
        encoded(folder, label, *labels)
    return str(caught.value)


def test_listed_classes_have_the_order_of_the_list(tmp_path: Path) -> None:
    found = encoded(tmp_path, {"classes": ["red", 7, True, 2**63]}, "7", "true", "red", "7")
    assert found.classes == ("red", "7", "true", "9223372036854775808")
    assert found.records("train")["label"].tolist() == [1, 2, 0, 1]


@pytest.mark.parametrize(
    ("labels", "classes", "indices"),
    [
        (("10", "9", "10", "-1.5"), ("-1.5", "9", "10"), [2, 1, 2, 0]),
        (("b", "10", "9"), ("10", "9", "b"), [2, 0, 1]),
    ],
)
def test_classes_are_learned_from_the_training_files(
    tmp_path: Path, labels: tuple[str, ...], classes: tuple[str, ...], indices: list[int]
) -> None:
    found = encoded(tmp_path, {"classes": "auto"}, *labels)
    assert found.classes == classes
    assert found.records("train")["label"].tolist() == indices
    assert found.fingerprint != encoded(tmp_path, {"classes": [*classes, "z"]}, *labels).fingerprint


def test_streamed_rows_have_the_learned_classes(tmp_path: Path) -> None:
    path = csv(tmp_path / "rows.csv", *(f"v{index % 3},a,1" for index in range(10)))
    data = table(path, label={"column": "y", "classes": "auto"}, stream=True)
    labels = [
        float(label) for batch in open_batches(data, 4, 0, tmp_path).train(0, 0, 0, 1) for label in batch.rows["label"]
    ]
    assert sorted(labels) == [0.0] * 4 + [1.0] * 3 + [2.0] * 3


def test_a_class_that_is_not_in_the_training_files_is_a_bad_row(tmp_path: Path) -> None:
    test = csv(tmp_path / "test.csv", "a,a,1", "c,a,1")
    given = {"label": {"column": "y", "classes": "auto"}, "test": str(test)}
    source = open_table_source(table(csv(tmp_path / "rows.csv", "a,a,1", "b,a,1"), **given), 0)
    with pytest.raises(InputError, match=r"test.csv row 3: the label y is 'c', not one of the classes; correct it or"):
        source.encoded_table(tmp_path / "cache")


def test_numbers_are_stored_as_they_are(tmp_path: Path) -> None:
    found = encoded(tmp_path, {"numeric": True}, "1.5", "-2e3", "1.5")
    assert found.classes == ()
    assert found.records("train")["label"].tolist() == [1.5, -2000.0, 1.5]


@pytest.mark.parametrize(
    ("label", "labels", "message"),
    [
        ({"numeric": True}, ("1", "high"), "row 3: the label y is 'high', not a finite number"),
        ({"numeric": True}, ("1", "NA"), "row 3: the label y is missing"),
        ({"numeric": True}, ("1", "1e39"), "row 3: the label y is 1e+39, too large for float32"),
        ({"classes": "auto"}, ("a", "a"), "the label 'y' has only the value 'a' in the training files; classes need"),
        ({"classes": "auto"}, ("NA",), "the label 'y' has no values in the training files"),
        ({"classes": ["a", "b"]}, ("b", "b"), "all 2 training rows have the label 'b'; check data.label: column 'y'"),
    ],
)
def test_unusable_labels(tmp_path: Path, label: dict[str, Any], labels: tuple[str, ...], message: str) -> None:
    assert message in error(tmp_path, label, *labels)


@pytest.mark.parametrize(
    ("label", "kind", "message"),
    [
        ({"numeric": True}, pa.date32(), "the label 'y' has type date32[day]; it must contain numbers"),
        ({"classes": "auto"}, pa.list_(pa.int64()), "it must contain text, numbers or booleans"),
        ({}, pa.list_(pa.int64()), "it must contain text, numbers or booleans"),
    ],
)
def test_a_parquet_label_of_another_type(
    tmp_path: Path, label: dict[str, Any], kind: pa.DataType, message: str
) -> None:
    pq.write_table(pa.table({"y": pa.nulls(1, kind), "c": ["a"], "n": [1.0]}), tmp_path / "a.parquet")
    source = open_table_source(table(tmp_path / "a.parquet", label={"column": "y", **label}), 0)
    with pytest.raises(InputError) as caught:
        source.encoded_table(tmp_path / "cache")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("label", "labels"),
    [
        ({"classes": "auto"}, [0.0, 1.0, 0.0]),
        ({"classes": [1, 2]}, [0.0, 1.0, 0.0]),
        ({"positive": 1}, [1.0, 0.0, 1.0]),
    ],
)
def test_a_missing_label_of_a_parquet_file_is_a_bad_row(
    tmp_path: Path, label: dict[str, Any], labels: list[float]
) -> None:
    """Null, NaN, and a number that `missing` contains: as in CSV files."""
    given = {"y": pa.array([1.0, 2.0, None, float("nan"), -1.0, 1.0]), "c": ["a"] * 6, "n": [1.0] * 6}
    pq.write_table(pa.table(given), tmp_path / "a.parquet")
    missing = ("", "nan", "-1")
    data = table(tmp_path / "a.parquet", label={"column": "y", **label}, missing=missing, max_bad_rows=3)
    found = open_table_source(data, 0).encoded_table(tmp_path / "cache")
    assert (found.bad_rows, found.records("train")["label"].tolist()) == (3, labels)


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ({"classes": ["a"]}, "classes must have 2 values or more; for a label that is yes or no, set positive"),
        ({"classes": ["a", "b", "a"]}, "classes lists a more than once"),
        ({"classes": [True, False, "true"]}, "classes lists true more than once"),
        ({"classes": ["1", 2, 1.0]}, "classes lists 1 more than once"),
        ({"classes": ["EU", "NA"]}, "missing contains NA, so no row has this label; remove it from either"),
        ({"classes": "auto", "positive": "a"}, "positive and classes describe different kinds of labels; set one"),
        ({"classes": "auto", "numeric": True}, "classes and numeric describe different kinds of labels"),
    ],
)
def test_contradictions(label: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Data.model_validate(described("a", label={"column": "y", **label}))


def test_the_kind_follows_from_the_fields() -> None:
    given: list[dict[str, Any]] = [{}, {"positive": "a"}, {"classes": "auto"}, {"classes": [1, 2]}, {"numeric": True}]
    kinds = [Label.model_validate({"column": "y", **label}).target for label in given]
    assert kinds == ["binary", "binary", "classes", "classes", "number"]
