"""A job's text as tokens, encoded or generated once per node and memory-mapped.

Each line is encoded separately, so that the tokens don't depend on how the text is read.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import tokenizers
import torch
from tokenizers import Tokenizer

from rolecall.kit.cache import build_once, require_space
from rolecall.kit.files import File, find
from rolecall.kit.text.params import SyntheticText, Text
from rolecall.kit.text.reading import lines, slice_lines
from rolecall.kit.text.synthetic import number_tokenizer, random_targets, stored_bytes, synthetic_tokens
from rolecall.kit.text.tokenizing import UNKNOWN, train_tokenizer
from rolecall.spec.errors import InputError
from rolecall.spec.visible import one_line

SplitName = Literal["train", "validation", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "validation", "test")
_LAYOUT = 2
_DIGEST = "digest"
"""The name of the file of the tokens' hash; a generated text, which follows from the parameters, has none."""
_BATCH_CHARACTERS = 1 << 18  # encoded at once, on all cores; needs some hundred bytes per token


@dataclass(frozen=True, slots=True)
class Corpus:
    """The tokenizer of a text, and the tokens of its splits."""

    tokenizer: Tokenizer
    folder: Path

    @property
    def vocabulary_size(self) -> int:
        return self.tokenizer.get_vocab_size()

    @property
    def unknown(self) -> int | None:
        """The id of `<unk>`; None if the tokenizer has none."""
        return self.tokenizer.token_to_id(UNKNOWN)

    @property
    def tokenizer_json(self) -> str:
        """The tokenizer as JSON, for `Tokenizer.from_str`."""
        return self.tokenizer.to_str()

    @property
    def fingerprint(self) -> str:
        """A hash of the tokenizer and the tokens of each split."""
        sizes = [_length(self.folder / split) for split in SPLITS]
        path = self.folder / _DIGEST
        digest = path.read_text() if path.exists() else ""
        return hashlib.sha256(json.dumps([self.tokenizer_json, sizes, digest]).encode()).hexdigest()

    def tokens(self, split: SplitName) -> torch.Tensor:
        """The split's tokens [n] int32, memory-mapped; empty if the job has no such split."""
        return _mapped(self.folder / split)

    def targets(self, split: SplitName) -> torch.Tensor | None:
        """Random targets [n - 1] int32 of the split's tokens but the last; None if the next tokens are the targets."""
        path = self.folder / _TARGETS.format(split)
        return _mapped(path)[1:] if path.exists() else None

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text).ids

    def decode(self, ids: list[int]) -> str:
        """The text of the tokens; spaces around words are approximate."""
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def opening(self, prompt: str) -> str:
        """The prompt; the first token of the training text if the prompt has none, as a line end in synthetic text."""
        if self.encode(prompt):
            return prompt
        first: list[int] = self.tokens("train")[:1].tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        return self.decode(first)


_NO_TOKENS = torch.empty(0, dtype=torch.int32)
_TARGETS = "{}.targets"
"""The name of the file of a split's targets, one for each token."""


def open_corpus(text: Text, cache: Path) -> Corpus:
    """The text's corpus in the owner's `cache`, built if missing; concurrent callers wait.

    Raises `InputError` for files that are missing or not UTF-8 text, and for an empty split.
    """
    files = {split: find(paths) for split, paths in text.sources.items()}
    identities = {split: [file.identity for file in found] for split, found in files.items()}
    # Everything that the corpus depends on.
    content = [_LAYOUT, tokenizers.__version__, text.model_dump(mode="json"), identities]
    key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]
    build = partial(_encode, text, files) if text.synthetic is None else partial(_generate, text, text.synthetic)
    folder = build_once(cache / "text", key, build)
    return Corpus(Tokenizer.from_file(str(folder / "tokenizer.json")), folder)


def _generate(text: Text, synthetic: SyntheticText, folder: Path) -> None:
    require_space(folder, stored_bytes(synthetic))
    number_tokenizer(synthetic.vocabulary).save(str(folder / "tokenizer.json"))
    given = text.synthetic_tokens
    # One source, so that the validation text continues the training text.
    with (folder / "train").open("wb") as train, (folder / "validation").open("wb") as validation:
        left = given["train"]
        for block in synthetic_tokens(synthetic, synthetic.tokens, 0):
            block[:left].tofile(train)
            block[left:].tofile(validation)
            left = max(0, left - len(block))
    with (folder / "test").open("wb") as test:
        for block in synthetic_tokens(synthetic, given.get("test", 0), 1):
            block.tofile(test)
    if synthetic.targets == "random":
        for split in SPLITS:
            with (folder / _TARGETS.format(split)).open("wb") as file:
                for block in random_targets(synthetic, _length(folder / split), split):
                    block.tofile(file)


def _encode(text: Text, files: dict[str, list[File]], folder: Path) -> None:
    splits = _splits(text, files)
    tokenizer = train_tokenizer(text, splits["train"])
    tokenizer.save(str(folder / "tokenizer.json"))
    # Once per entry, of the tokens as they are written: about 0.6 s per GB, while their encoding takes minutes.
    digest = hashlib.sha256()
    for split in SPLITS:
        _write(folder / split, tokenizer, splits.get(split, ()), digest.update)
        if split in splits and not _length(folder / split):
            if split in text.sources:
                raise InputError(f"the {split} text has no tokens: {one_line(', '.join(text.sources[split]))}")
            raise InputError(
                f"validation is {text.validation}, but no line begins in that share of the training text; "
                "increase it, add line breaks to the text, or set paths"
            )
    (folder / _DIGEST).write_text(digest.hexdigest())


class _Lines:
    """A re-iterable slice of the files' lines."""

    def __init__(self, files: list[File], start: int = 0, end: int | None = None) -> None:
        self._files, self._start, self._end = files, start, end

    def __iter__(self) -> Iterator[str]:
        return slice_lines(lines(self._files), self._start, self._end)


def _splits(text: Text, files: dict[str, list[File]]) -> dict[str, Iterable[str]]:
    splits: dict[str, Iterable[str]] = {split: _Lines(found) for split, found in files.items()}
    if isinstance(text.validation, float) and text.validation > 0:
        length = sum(map(len, lines(files["train"])))
        cut = round(length * (1 - text.validation))
        splits |= {"train": _Lines(files["train"], end=cut), "validation": _Lines(files["train"], start=cut)}
    return splits


def _write(path: Path, tokenizer: Tokenizer, lines: Iterable[str], update: Callable[[memoryview], None]) -> None:
    with path.open("wb") as file:
        for batch in _batch_lines(lines):
            for encoding in tokenizer.encode_batch_fast(batch):
                tokens = np.asarray(encoding.ids, np.int32)
                tokens.tofile(file)
                update(tokens.data)


def _batch_lines(lines: Iterable[str]) -> Iterator[list[str]]:
    batch, size = list[str](), 0
    for line in lines:
        batch.append(line)
        size += len(line)
        if size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _mapped(path: Path) -> torch.Tensor:
    return torch.from_file(str(path), size=_length(path), dtype=torch.int32) if _length(path) else _NO_TOKENS


def _length(path: Path) -> int:
    return path.stat().st_size // 4
