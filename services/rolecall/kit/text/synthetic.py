"""Synthetic text: random tokens from a counter-based generator, the same on every node and with every numpy version."""

import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from rolecall.kit.data_order import derive_seed, splitmix64
from rolecall.kit.text.params import SyntheticText, Text

_BLOCK = 1 << 20
_FOLLOWERS = 4
_TARGETS = 7
"""The purpose of the seed of random targets."""


def synthetic_tokens(text: SyntheticText, count: int, part: int) -> Iterator[NDArray[np.int32]]:
    """`count` tokens [n] in blocks; another `part` of the text has other tokens from the same source."""
    key, last = derive_seed(text.seed, part), 0
    for start in range(0, count, _BLOCK):
        random = splitmix64(np.arange(start, min(start + _BLOCK, count), dtype=np.uint64), key)
        if text.source == "markov":
            steps = random % np.uint64(min(_FOLLOWERS, text.vocabulary)) + np.uint64(1)
            tokens = (np.cumsum(steps) + np.uint64(last)) % np.uint64(text.vocabulary)
            last = int(tokens[-1])
        else:
            tokens = random % np.uint64(text.vocabulary)
        yield tokens.astype(np.int32)


def random_targets(text: SyntheticText, count: int, split: str) -> Iterator[NDArray[np.int32]]:
    """`count` tokens [n] in blocks that are unrelated to the tokens of the split."""
    unrelated = text.model_copy(update={"source": "uniform", "seed": derive_seed(text.seed, _TARGETS) % 2**63})
    return synthetic_tokens(unrelated, count, zlib.crc32(split.encode()))


def stored_bytes(text: SyntheticText) -> int:
    """The size of all tokens and random targets on disk."""
    copies = 2 if text.targets == "random" else 1
    return copies * (text.tokens + text.test) * np.dtype(np.int32).itemsize


def number_tokenizer(vocabulary: int) -> Tokenizer:
    """A tokenizer of the numbers from 0 to `vocabulary` - 1 as text, separated by spaces; it has no `<unk>`."""
    tokenizer = Tokenizer(models.WordLevel({str(number): number for number in range(vocabulary)}))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("[0-9]+"), "removed", invert=True)
    return tokenizer


def readme_note(text: Text) -> str:
    """The paragraph of an exported model's README about its synthetic text; empty for a text of files."""
    if text.synthetic is None:
        return ""
    return _NOTE.format(last=text.synthetic.vocabulary - 1)


_NOTE = """
It was trained on synthetic text: its tokens are the numbers from 0 to {last}, separated by spaces. Write prompts such
as `model.generate("0 1")`.
"""
