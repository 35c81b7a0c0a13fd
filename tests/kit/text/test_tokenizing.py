"""Tokenizers are trained on the given lines, and their JSON is all that is needed to use them."""

import pytest
from tokenizers import Tokenizer

from rolecall.kit.text.params import Text
from rolecall.kit.text.tokenizing import UNKNOWN, train_tokenizer

LINES = ["The cat sat.\n", "The dog's cat (old) sat!\n"]


def trained(**given: object) -> Tokenizer:
    return train_tokenizer(Text.model_validate({"train": "a", **given}), LINES)


def test_words_are_split_at_spaces_and_punctuation() -> None:
    tokenizer = trained()
    assert tokenizer.encode(LINES[1]).tokens == ["The", "dog's", "cat", "(", "old", ")", "sat", "!", "\n"]
    assert tokenizer.decode(tokenizer.encode(LINES[1]).ids, skip_special_tokens=False) == LINES[1]


def test_the_most_frequent_tokens_fill_the_vocabulary() -> None:
    tokenizer = trained(vocabulary=4)
    assert tokenizer.get_vocab_size() == 4
    assert tokenizer.encode("The dog").tokens == ["The", UNKNOWN]


@pytest.mark.parametrize("tokens", ["word", "character"])
def test_other_tokens_are_unknown(tokens: str) -> None:
    assert UNKNOWN in trained(tokens=tokens).encode("Zürich").tokens


def test_byte_pairs_represent_every_text() -> None:
    tokenizer = trained(tokens="bpe", vocabulary=300)
    text = "Zürich, 東京\n"
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_lower_case_is_optional() -> None:
    assert trained(lowercase=True).encode("THE").tokens == ["the"]
    assert trained().encode("THE").tokens == [UNKNOWN]


@pytest.mark.parametrize("tokens", ["word", "character", "bpe"])
def test_a_tokenizer_is_its_json(tokens: str) -> None:
    tokenizer = trained(tokens=tokens)
    copy = Tokenizer.from_str(tokenizer.to_str())
    assert copy.encode(LINES[1]).ids == tokenizer.encode(LINES[1]).ids
