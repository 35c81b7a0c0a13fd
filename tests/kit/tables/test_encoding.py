"""Single rows are encoded as whole columns are."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rolecall.kit.tables.encoding import FIRST, MISSING, UNKNOWN, Encoder, IdColumn, NumberColumn
from rolecall.kit.tables.opening import open_table_source

from .tables import csv, table

WORDS = IdColumn("w", "dictionary", 10, FIRST + 2, 2, "|", ["a", "b"], [])
AGE = IdColumn("age", "buckets", 14, FIRST + 3, 1, None, [], [10.0, 20.0])
INCOME = NumberColumn("income", 1.0, 2.0, log=False)


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        ("a", [FIRST]),
        ("b|a|b", [FIRST + 1, FIRST]),
        (["c", " a "], [UNKNOWN, FIRST]),
        (None, [MISSING]),
        ("?", [MISSING]),
        ("", [MISSING]),
    ],
)
def test_values_have_the_ids_of_the_dictionary(given: Any, ids: list[int]) -> None:
    encoder = Encoder([WORDS, AGE], [], ["?"])
    assert encoder.ids({"w": given, "age": None})[0] == [WORDS.offset + one for one in ids]


@pytest.mark.parametrize(("given", "bucket"), [(9.9, 0), (10, 1), ("19.9", 1), (20, 2), (1e9, 2)])
def test_a_bound_belongs_to_the_bucket_above(given: Any, bucket: int) -> None:
    assert Encoder([AGE], [], []).ids({"age": given}) == [[AGE.offset + FIRST + bucket]]


def test_numbers_are_standardized_and_missing_ones_are_the_mean() -> None:
    encoder = Encoder([], [INCOME, NumberColumn("debt", 0.0, 1.0, log=True)], ["?"])
    assert encoder.numbers({"income": 5, "debt": -math.e + 1}) == pytest.approx([2.0, -1.0])
    assert encoder.numbers({"income": "?", "debt": None}) == [0.0, 0.0]


def test_a_row_without_a_column_is_an_error() -> None:
    with pytest.raises(ValueError, match="a row has no column 'w'; use None for a missing value"):
        Encoder([WORDS], [], []).ids({})


@pytest.mark.parametrize("ids", [{"ids": "dictionary"}, {"ids": "hash", "buckets": 7}])
def test_an_encoder_agrees_with_the_encoded_table(tmp_path: Path, ids: dict[str, Any]) -> None:
    values = [("a", 1.0), ("b", 2.0), ("a", 3.0), ("", 4.0), ("c", None), ("é", 6.5)]
    lines = [f"{number % 2},{c},{'' if n is None else n}" for number, (c, n) in enumerate(values)]
    path = csv(tmp_path / "a.csv", *lines)
    numeric = ["n", {"column": "n", "transform": "buckets", "buckets": 3}]
    source = open_table_source(table(path, categorical=[{"column": "c", **ids}], numeric=numeric), 0)
    encoded = source.encoded_table(tmp_path / "cache")
    encoder = Encoder(encoded.columns.ids, encoded.columns.numbers, source.data.missing)
    records = encoded.records("train")
    for record, (c, n) in zip(records, values, strict=True):
        row = {"c": c, "n": n}
        assert [one for found in encoder.ids(row) for one in found] == record["ids"].tolist()
        np.testing.assert_allclose(encoder.numbers(row), record["numbers"], rtol=1e-6)
