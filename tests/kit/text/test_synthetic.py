"""Synthetic text: random tokens that depend only on the parameters."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rolecall.kit.text.params import SyntheticText
from rolecall.kit.text.synthetic import number_tokenizer, random_targets, synthetic_tokens

LONG = (1 << 20) + 1000


def tokens(count: int, part: int = 0, **given: Any) -> NDArray[np.int32]:
    return np.concatenate(list(synthetic_tokens(SyntheticText.model_validate({"tokens": count, **given}), count, part)))


@pytest.mark.parametrize("source", ["uniform", "markov"])
def test_every_token_is_equally_frequent(source: str) -> None:
    counts = np.bincount(tokens(LONG, vocabulary=10, source=source), minlength=10)
    assert counts.sum() == LONG
    np.testing.assert_allclose(counts / LONG, 0.1, atol=0.002)  # 6 standard deviations of independent tokens


def test_a_uniform_token_does_not_depend_on_the_last_one() -> None:
    text = tokens(LONG, vocabulary=10).astype(np.int64)
    pairs = np.bincount(10 * text[:-1] + text[1:], minlength=100)
    np.testing.assert_allclose(pairs / LONG, 0.01, atol=0.0006)


def test_a_markov_token_is_followed_by_one_of_the_next_four() -> None:
    steps = np.diff(tokens(LONG, vocabulary=10, source="markov").astype(np.int64)) % 10
    counts = np.bincount(steps, minlength=10)
    assert counts[[0, *range(5, 10)]].sum() == 0
    np.testing.assert_allclose(counts[1:5] / LONG, 0.25, atol=0.003)


def test_a_small_vocabulary_has_fewer_followers() -> None:
    assert set(tokens(1000, vocabulary=3, source="markov").tolist()) == {0, 1, 2}


@pytest.mark.parametrize("source", ["uniform", "markov"])
def test_tokens_depend_on_seed_and_part_alone(source: str) -> None:
    text = tokens(LONG, source=source)
    np.testing.assert_array_equal(tokens(100, source=source), text[:100])
    assert (tokens(100, source=source, seed=1) != text[:100]).any()
    assert (tokens(100, 1, source=source) != text[:100]).any()


def test_the_first_tokens_are_those_of_every_release() -> None:
    assert tokens(8, vocabulary=10).tolist() == [8, 0, 3, 6, 3, 0, 1, 8]
    assert tokens(8, vocabulary=10, source="markov", seed=1).tolist() == [4, 6, 8, 2, 6, 9, 1, 4]


@pytest.mark.parametrize("source", ["uniform", "markov"])
def test_random_targets_are_unrelated_to_the_text(source: str) -> None:
    given = {"tokens": LONG, "vocabulary": 10, "source": source, "targets": "random"}
    found = np.concatenate(list(random_targets(SyntheticText.model_validate(given), LONG, "train"))).astype(np.int64)
    for shift in (0, 1):
        text = np.roll(tokens(LONG, vocabulary=10, source=source), -shift)
        pairs = np.bincount(10 * text.astype(np.int64) + found, minlength=100)
        np.testing.assert_allclose(pairs / LONG, 0.01, atol=0.0008)
    other = np.concatenate(list(random_targets(SyntheticText.model_validate(given), 100, "test")))
    assert (other != found[:100]).any()


def test_tokens_are_displayed_as_numbers() -> None:
    tokenizer = number_tokenizer(12)
    assert tokenizer.get_vocab_size() == 12
    assert tokenizer.encode("3 1\n11").ids == [3, 1, 11]
    assert tokenizer.decode([3, 1, 11], skip_special_tokens=False) == "3 1 11"
    assert tokenizer.encode("no number\n").ids == []
