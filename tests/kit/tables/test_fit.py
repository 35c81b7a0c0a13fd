# pyright: standard
"""Columns fitted to the training rows, against numpy on the whole column."""

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from rolecall.kit.tables import fit
from rolecall.kit.tables.columns import Columns
from rolecall.kit.tables.encoding import FIRST, MISSING, UNKNOWN, IdColumn, stable_hash
from rolecall.kit.tables.records import bucket_ids, normalized, text_ids
from rolecall.kit.tables.rows import Rows, Values

from .tables import table

finite = st.floats(-1e6, 1e6)
columns = arrays(np.float64, st.integers(1, 60), elements=finite | st.just(np.nan))
texts = st.lists(st.text(max_size=3), max_size=40)
HASHES = [0xB4B2797457A0A6E4, 0x2F42665B399EF840, 0x39A02B5EE2BB4DF0]


def chunks(values: Any, cuts: int) -> list[Any]:
    return np.array_split(values, cuts)


def fitted(numbers: NDArray[np.float64], cuts: int, column: dict[str, Any]) -> Columns:
    """State of `Fit` about one numeric column after `cuts` chunks, shown from the last to the first."""
    given = table("a.csv", categorical=["c"], numeric=[{"column": "n"} | column])
    learner = fit.Fit(given, seed=3)
    parts = zip(chunks(np.arange(len(numbers)), cuts), chunks(numbers, cuts), strict=True)
    for rows, part in reversed(list(parts)):
        empty = np.empty(0, np.int64)
        nothing = Values(pa.array([], pa.string()), empty, empty)
        learner.add(Rows(rows, np.zeros(len(rows), np.float32), [nothing], [part]))
    return learner.columns()


def dictionary(values: list[str], **column: Any) -> IdColumn:
    given = table("a.csv", categorical=[{"column": "c"} | column], numeric=[])
    learner = fit.Fit(given, seed=0)
    for part in chunks(np.array(values, dtype=object), 3):
        rows = np.arange(len(part))
        known = Values(pa.array(part.tolist(), pa.string()), rows, np.zeros_like(rows))
        learner.add(Rows(rows, np.zeros(len(rows), np.float32), [known], []))
    return learner.columns().ids[0]


@given(values=texts, min_count=st.integers(1, 4))
def test_a_dictionary_keeps_what_is_frequent_enough(values: list[str], min_count: int) -> None:
    column = dictionary(values, min_count=min_count)
    counts = Counter(values)
    assert set(column.values) == {value for value, count in counts.items() if count >= min_count}
    assert [counts[value] for value in column.values] == sorted((counts[v] for v in column.values), reverse=True)
    assert column.size == FIRST + len(column.values)
    ids = text_ids(column, pa.array(values, pa.string())).tolist()
    assert all((one == UNKNOWN) == (counts[value] < min_count) for one, value in zip(ids, values, strict=True))


@given(numbers=columns, cuts=st.integers(1, 5), log=st.booleans())
def test_mean_and_deviation_are_numpys(numbers: NDArray[np.float64], cuts: int, log: bool) -> None:
    (column,) = fitted(numbers, cuts, {"log": log}).numbers
    known = numbers[~np.isnan(numbers)]
    values = np.sign(known) * np.log1p(np.abs(known)) if log else known
    assert column.mean == pytest.approx(values.mean() if len(values) else 0.0, rel=1e-9, abs=1e-9)
    spread = values.std() if len(values) else 0.0
    if spread > 1e-6:
        assert column.deviation == pytest.approx(spread, rel=1e-6)
        scaled = normalized(column, numbers)
        assert scaled[~np.isnan(numbers)].std() == pytest.approx(1.0)
        assert not scaled[np.isnan(numbers)].any()


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6, -2.5e-3])
def test_a_column_of_one_value_is_not_blown_up(value: float) -> None:
    (column,) = fitted(np.full(50, value), 3, {}).numbers
    assert np.abs(normalized(column, np.full(3, value))).max() < 1e-6


@given(numbers=columns, cuts=st.integers(1, 5), buckets=st.integers(2, 12))
def test_bucket_bounds_are_numpys_quantiles(numbers: NDArray[np.float64], cuts: int, buckets: int) -> None:
    column = fitted(numbers, cuts, {"transform": "buckets", "buckets": buckets}).ids[1]
    known = numbers[~np.isnan(numbers)]
    expected = np.unique(np.quantile(known, np.arange(1, buckets) / buckets)) if len(known) else np.empty(0)
    np.testing.assert_array_equal(column.bounds, expected)
    assert column.size == FIRST + len(expected) + 1
    ids = bucket_ids(column, numbers)
    assert ((ids == MISSING) == np.isnan(numbers)).all()
    assert ids.max(initial=0) < column.size


def test_the_sample_for_quantiles_does_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "_SAMPLE_SIZE", 500)
    numbers = np.random.default_rng(0).normal(size=20_000)
    one, many = (fitted(numbers, cuts, {"transform": "buckets", "buckets": 4}).ids[1].bounds for cuts in (1, 37))
    assert one == many
    np.testing.assert_allclose(one, np.quantile(numbers, [0.25, 0.5, 0.75]), atol=0.15)


def test_columns_share_one_space_of_ids() -> None:
    numeric = [{"column": "n", "transform": "buckets", "buckets": 2}]
    hashed = {"column": "h", "ids": "hash", "buckets": 7}
    given = table("a.csv", categorical=["c", hashed], numeric=numeric)
    learner, rows = fit.Fit(given, seed=0), np.arange(2)
    values = Values(pa.array(["a", "b"]), rows, np.zeros_like(rows))
    learner.add(Rows(rows, np.zeros(2, np.float32), [values, values], [np.array([1.0, 2.0])]))
    found = learner.columns()
    assert [(one.offset, one.size) for one in found.ids] == [(0, FIRST + 2), (FIRST + 2, FIRST + 7), (13, FIRST + 2)]
    assert found.num_ids == 13 + FIRST + 2


def test_the_hash_never_changes() -> None:
    """Exported models and checkpoints rely on these numbers."""
    assert [stable_hash(text) for text in ("", "a", "ä")] == HASHES


@given(values=st.lists(st.text(), unique=True, max_size=50))
def test_the_hash_is_64_bits_and_tells_texts_apart(values: list[str]) -> None:
    hashes = [stable_hash(value) for value in values]
    assert all(0 <= one < 2**64 for one in hashes)
    assert len(set(hashes)) == len(values)


@given(values=texts, buckets=st.integers(1, 2**31))
def test_hashed_ids_lie_in_their_buckets(values: list[str], buckets: int) -> None:
    column = dictionary(values, ids="hash", buckets=buckets)
    ids = text_ids(column, pa.array(values, pa.string())).tolist()
    assert column.size == FIRST + buckets
    assert ids == [FIRST + stable_hash(value) % buckets for value in values]


def test_the_hash_fills_its_buckets_evenly() -> None:
    filled = Counter(stable_hash(f"user-{number}") % 64 for number in range(64_000))
    assert len(filled) == 64
    assert 850 < min(filled.values()) <= max(filled.values()) < 1150  # five deviations
