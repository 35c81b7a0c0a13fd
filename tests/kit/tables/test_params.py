"""Parameters of a table; `tests/workloads/embedding_ddp/test_params.py` has the errors that users get."""

from typing import Any

import pytest
from pydantic import ValidationError

from rolecall.kit.tables.params import Data

from .tables import described, table


def test_every_column_is_read_once() -> None:
    given = table("a", numeric=["n", {"column": "n", "transform": "buckets"}])
    assert given.columns == ["y", "c", "n"]


def test_a_column_may_be_given_by_its_name() -> None:
    given = table("a")
    assert (given.label.column, given.categorical[0].column, given.numeric[0].column) == ("y", "c", "n")
    assert given.numeric[0].transform == "normalize"


def test_a_split_has_sources_if_it_has_files() -> None:
    assert list(table("a", validation=0.5).sources) == ["train"]
    assert table("a", validation="b", test=["c", "d"]).sources == {
        "train": ["a"],
        "validation": ["b"],
        "test": ["c", "d"],
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"categorical": ["c", "c"]}, "categorical lists c more than once"),
        ({"numeric": ["n", "n"]}, r"numeric lists n \(normalize\) more than once"),
        ({"categorical": ["y"]}, "label 'y' can't also be an input"),
        ({"categorical": []}, "none uses the embedding"),
        ({"shuffle_buffer": 0}, "greater than or equal to 1"),
    ],
)
def test_the_error_names_the_column(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Data.model_validate(described("a") | changes)
