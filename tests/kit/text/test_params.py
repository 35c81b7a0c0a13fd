"""Parameters of a text."""

from typing import Any

import pytest
from pydantic import ValidationError

from rolecall.kit.text.params import Sample, Text


@pytest.mark.parametrize(
    ("validation", "splits"),
    [(0.1, ["train"]), (0.0, ["train"]), ("b.txt", ["train", "validation"]), (["b", "c"], ["train", "validation"])],
)
def test_a_split_has_sources_if_it_has_files(validation: Any, splits: list[str]) -> None:
    assert list(Text.model_validate({"train": "a.txt", "validation": validation}).sources) == splits


def test_byte_pairs_need_a_token_for_each_byte() -> None:
    with pytest.raises(ValidationError, match="must be at least 256"):
        Text(train=["a"], tokens="bpe", vocabulary=255)


def test_a_prompt_has_a_token() -> None:
    assert Sample(prompt="\n").prompt == "\n"
    for blank in ("", " \t"):
        with pytest.raises(ValidationError, match="a blank prompt has no tokens"):
            Sample(prompt=blank)
