"""Parameters of a text."""

from typing import Any

import pytest
from pydantic import ValidationError

from rolecall.kit.text.params import Sample, Text, check_prompt, check_sequences, check_streams


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


def test_a_text_needs_a_source() -> None:
    with pytest.raises(ValidationError, match="set train to paths, or synthetic"):
        Text.model_validate({"validation": 0.1})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"train": "a"}, "train is not for synthetic text; omit it"),
        (
            {"tokens": "bpe", "vocabulary": 300},
            "(?s)tokens is not for synthetic text.*vocabulary is not for synthetic text; set synthetic.vocabulary",
        ),
        ({"test": "a", "lowercase": True}, "(?s)test is not for synthetic text.*lowercase is not for"),
        ({"validation": "a"}, "validation is not for synthetic text; set a share"),
        ({"validation": 0.004}, "leaves no validation text"),
        ({"validation": 0.999}, "leaves no train text"),
    ],
)
def test_synthetic_text_excludes_what_defines_files(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        Text.model_validate({"synthetic": {"tokens": 100}, **given})


@pytest.mark.parametrize(
    ("validation", "test", "splits"),
    [
        (0.0, 0, {"train": 100}),
        (0.05, 0, {"train": 95, "validation": 5}),
        (0.25, 9, {"train": 75, "validation": 25, "test": 9}),
    ],
)
def test_the_splits_of_a_synthetic_text_have_known_lengths(
    validation: float, test: int, splits: dict[str, int]
) -> None:
    found = Text.model_validate({"synthetic": {"tokens": 100, "test": test}, "validation": validation})
    assert found.synthetic_tokens == splits
    assert found.sources == {}


def synthetic(**given: Any) -> Text:
    return Text.model_validate({"synthetic": {"tokens": 100, "vocabulary": 12, **given}, "validation": 0.1})


def test_a_prompt_of_synthetic_text_has_its_tokens() -> None:
    for prompt in ("\n", "0", "11 3\n0"):
        check_prompt(synthetic(), Sample(prompt=prompt))
    for prompt in ("12", "1 two", "-1", "01", "²", "9" * 5000):
        with pytest.raises(ValueError, match="use numbers from 0 to 11"):
            check_prompt(synthetic(), Sample(prompt=prompt))
    check_prompt(Text(train=["a"]), Sample(prompt="1 two"))


def test_a_synthetic_text_must_be_long_enough() -> None:
    check_streams(synthetic(), 9)
    with pytest.raises(ValueError, match="the synthetic validation text has 10 tokens, too few for 10 streams"):
        check_streams(synthetic(), 10)
    check_sequences(synthetic(test=9), 11, 8)
    with pytest.raises(ValueError, match="the synthetic validation text has 10 tokens, but a score needs 11"):
        check_sequences(synthetic(), 8, 10)
    with pytest.raises(ValueError, match="the synthetic test text has 9 tokens, but a score needs 10"):
        check_sequences(synthetic(test=9), 8, 9)
    with pytest.raises(ValueError, match="the synthetic train text has 90 tokens, but a step needs 91"):
        check_sequences(synthetic(), 9, 10)
    check_streams(Text(train=["a"]), 10**6)
    check_sequences(Text(train=["a"]), 10**6, 10)
