"""Parameters of images."""

from typing import Any

import pytest
from pydantic import ValidationError

from rolecall.kit.images.params import Idx, Images

IDX = {"images": "a", "labels": "b"}


@pytest.mark.parametrize(
    ("validation", "splits", "has_validation"),
    [(0.1, ["train"], True), (0.0, ["train"], False), ("folder", ["train", "validation"], True)],
)
def test_a_split_has_a_source_if_it_has_files(validation: Any, splits: list[str], has_validation: bool) -> None:
    images = Images.model_validate({"train": "folder", "validation": validation})
    assert list(images.sources) == splits
    assert images.has_validation is has_validation


def test_synthetic_images_have_no_files() -> None:
    images = Images.model_validate({"synthetic": {"images": 20, "classes": 3}})
    assert images.sources == {}
    assert images.has_validation


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"synthetic": None}, "train is missing; set either train .* or synthetic"),
        ({"train": "folder"}, "train and synthetic are both given"),
        ({"test": "folder"}, "set synthetic.test"),
        ({"validation": "folder"}, "must be a share"),
        ({"classes": ["x", "y"]}, "set synthetic.classes"),
        ({"synthetic": {"images": 20, "classes": 1}}, "greater than or equal to 2"),
        ({"synthetic": {"images": 10**9, "classes": 2}}, "less than or equal to 10000000"),
    ],
)
def test_synthetic_images_and_files_are_not_mixed(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Images.model_validate({"synthetic": {"images": 20, "classes": 3}} | changes)


def test_a_source_is_a_folder_or_a_pair_of_files() -> None:
    assert Images.model_validate({"train": "folder"}).train == "folder"
    images = Images.model_validate({"train": IDX, "test": IDX, "classes": ["x", "y"]})
    assert isinstance(images.test, Idx)
    assert images.classes == ("x", "y")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": ["x", "y"]}, "classes requires IDX files"),
        ({"augment": ["flip", "flip"]}, "augment lists flip more than once"),
        ({"augment": ["zoom", "shift"]}, "list only one of them"),
        ({"augment": ["turn"]}, "'zoom', 'shift' or 'flip'"),
        ({"size": 8}, "greater than or equal to 16"),
        ({"std": [1, 1, 0]}, "greater than 0"),
    ],
)
def test_the_error_names_what_is_valid(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Images.model_validate({"train": "folder"} | changes)
