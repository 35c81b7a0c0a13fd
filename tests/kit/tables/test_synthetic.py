"""Generated rows: their sizes, their labels, and what a model can learn from them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from rolecall.kit.tables.batches import open_batches
from rolecall.kit.tables.columns import PADDING
from rolecall.kit.tables.encoded import EncodedTable
from rolecall.kit.tables.params import SyntheticData, TableData
from rolecall.kit.tables.synthetic import open_synthetic_table
from rolecall.spec.errors import InputError


def generated(folder: Path, validation: float = 0.0, **given: Any) -> EncodedTable:
    data = SyntheticData.model_validate({"synthetic": given, "validation": validation})
    return open_synthetic_table(data, folder / "cache")


def records(folder: Path, **given: Any) -> NDArray[np.void]:
    return generated(folder, **given).records("train")


def test_bags_are_ragged_and_ids_belong_to_their_column(tmp_path: Path) -> None:
    table = generated(tmp_path, rows=3000, columns=2, ids=20, min_values=2, max_values=5, numbers=3)
    rows = table.records("train")
    assert (table.columns.num_ids, rows["ids"].shape, rows["numbers"].shape) == (44, (3000, 10), (3000, 3))
    for column, ids in zip(table.columns.ids, np.split(rows["ids"], 2, axis=1), strict=True):
        present = ids != PADDING
        assert set(present.sum(1)) == {2, 3, 4, 5}
        assert (np.diff(present.astype(int)) <= 0).all(), "padding comes last"
        assert set(ids[present]) == set(range(column.offset + 2, column.offset + column.size))
    assert abs(rows["numbers"].mean()) < 0.05
    assert rows["numbers"].std() == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("skew", [0.5, 1.0, 2.0])
def test_skewed_values_are_as_likely_as_in_zipfs_law(tmp_path: Path, skew: float) -> None:
    table = generated(tmp_path, rows=20_000, columns=2, ids=50, skew=skew)
    ids = table.records("train")["ids"][:, 1] - table.columns.ids[1].offset - 2
    shares = np.bincount(ids, minlength=50) / len(ids)
    edges = np.arange(1.0, 52.0)
    integral = np.log(edges) if skew == 1 else edges ** (1 - skew) / (1 - skew)
    expected = np.diff(integral) / (integral[-1] - integral[0])
    assert len(shares) == 50
    assert np.abs(shares - expected).max() < 0.015
    assert (np.diff(expected) < 0).all()


def test_rows_depend_on_the_seed_alone(tmp_path: Path) -> None:
    first, again, other = (
        records(tmp_path / name, rows=50, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    np.testing.assert_array_equal(first, again)
    assert (first["ids"] != other["ids"]).any()


def test_the_splits_share_the_rows(tmp_path: Path) -> None:
    table = generated(tmp_path, validation=0.25, rows=2000, test=300)
    assert table.rows["train"] + table.rows["validation"] == 2000
    assert 400 < table.rows["validation"] < 600
    assert table.rows["test"] == len(table.records("test")) == 300


@pytest.mark.parametrize(("label", "values"), [("binary", {0, 1}), (8, set(range(8)))])
def test_every_class_is_equally_likely(tmp_path: Path, label: str | int, values: set[int]) -> None:
    found, counts = np.unique(records(tmp_path, rows=8000, label=label)["label"], return_counts=True)
    assert set(found) == values
    assert counts / 8000 == pytest.approx(1 / len(values), abs=0.03)


@pytest.mark.parametrize("label", ["binary", 3, "number"])
def test_with_a_signal_the_label_follows_from_the_ids(tmp_path: Path, label: str | int) -> None:
    rows = records(tmp_path, rows=2000, ids=5, label=label, signal=1.0)
    by_id = [set(rows["label"][rows["ids"][:, 0] == id]) for id in np.unique(rows["ids"])]
    assert [len(labels) for labels in by_id] == [1] * 5
    random = records(tmp_path, rows=2000, ids=5, label=label)
    assert len(set(random["label"][random["ids"][:, 0] == random["ids"][0, 0]])) > 1


def test_trainers_share_generated_batches_in_random_order(tmp_path: Path) -> None:
    data = SyntheticData.model_validate({"synthetic": {"rows": 30, "numbers": 1}, "validation": 0.0})
    batches = open_batches(data, 8, 0, tmp_path)
    numbers = [float(row) for batch in batches.train(0, 0, 0, 1) for row in batch.rows["numbers"][:, 0]]
    assert batches.steps_per_epoch == 4
    assert sorted(numbers) == sorted(batches.table.records("train")["numbers"][:, 0].tolist())


def test_a_split_that_takes_all_rows_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"data\.validation takes all 1 generated rows; set more data\.synthetic\.rows"
    ):
        generated(tmp_path, validation=0.999999, rows=1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"synthetic": {"min_values": 3, "max_values": 2}}, "max_values 2 is below min_values 3"),
        ({"synthetic": {"rows": 2**31, "columns": 10}}, "at most 1000000000 are generated: set fewer rows"),
        ({"synthetic": {"label": 1}}, "greater than or equal to 2"),
        ({"synthetic": {}, "train": "a.csv"}, "train is not for synthetic data, which is generated; omit train"),
        ({"label": "y"}, "Field required"),
    ],
)
def test_an_error_is_about_the_form_that_was_meant(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message) as caught:
        TypeAdapter[Any](TableData).validate_python(given)
    assert all("Data" not in map(str, problem["loc"]) for problem in caught.value.errors())


def test_a_step_uses_a_random_number_of_its_rows(tmp_path: Path) -> None:
    data = SyntheticData.model_validate({"synthetic": {"rows": 250, "min_batch": 4}, "validation": 0.0})
    batches = open_batches(data, 20, 7, tmp_path)
    every = [list(batches.train(epoch, 0, 0, 1)) for epoch in range(2)]
    sizes = [[batch.global_rows for batch in epoch] for epoch in every]
    assert [len(epoch) for epoch in sizes] == [13, 13]
    assert min(map(min, sizes)) >= 4
    assert max(map(max, sizes)) <= 20
    assert len(set(sizes[0])) > 5
    assert sizes[0] != sizes[1]
    assert sizes[0][-1] <= 10, "the last batch has 10 rows"
    # A continued job, and any number of trainers, has the same global batches.
    shares = zip(*(batches.train(1, 5, rank, 3) for rank in range(3)), strict=True)
    for whole, parts in zip(every[1][5:], shares, strict=True):
        assert len(whole.rows) == whole.global_rows == parts[0].global_rows
        np.testing.assert_array_equal(np.concatenate([part.rows for part in parts]), whole.rows)
    full = SyntheticData.model_validate({"synthetic": {"rows": 250}, "validation": 0.0})
    assert {batch.global_rows for batch in open_batches(full, 20, 7, tmp_path).train(0, 0, 0, 1)} == {20, 10}
    tables = [path for path in (tmp_path / "synthetic-tables").iterdir() if path.suffix != ".lock"]
    assert len(tables) == 1, "the same rows are generated once"
