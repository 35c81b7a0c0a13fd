# pyright: standard
"""Text files become the same tokens however they are packed, split and read."""

import gzip
from pathlib import Path
from typing import Any

import pytest
import torch

from rolecall.kit.text import corpus as corpus_module
from rolecall.kit.text.corpus import SPLITS, Corpus, open_corpus
from rolecall.kit.text.params import Text
from rolecall.spec.errors import InputError

PROSE = "The half-wild cat sat—as cats do--there.\n\n“Why?” asked the dog; it didn't know.\n" * 20


def corpus(folder: Path, text: str = PROSE, **given: Any) -> Corpus:
    path = folder / "prose.txt"
    if not path.exists():
        path.write_text(text)
    return open_corpus(Text(train=[str(path)], **given), folder / "cache")


@pytest.mark.parametrize("tokens", ["word", "character", "bpe"])
def test_text_comes_back_from_its_tokens(tmp_path: Path, tokens: str) -> None:
    found = corpus(tmp_path, tokens=tokens, vocabulary=400, validation=0.25)
    train, held_out = (found.decode(found.tokens(split).tolist()) for split in ("train", "validation"))
    assert train + held_out == PROSE
    assert len(held_out) <= len(PROSE) * 0.25
    assert found.tokens("test").numel() == 0
    assert found.tokens("train").dtype == torch.int32
    assert int(found.tokens("train").max()) < found.vocabulary_size <= 400


def test_words_keep_their_apostrophes_and_signs_stand_alone(tmp_path: Path) -> None:
    found = corpus(tmp_path, tokens="word")
    ids = found.encode("the dog didn't; _why_?\n")
    assert [found.decode([one]) for one in ids] == ["the", "dog", "didn't", ";", "<unk>", "<unk>", "<unk>", "?", "\n"]


def test_a_small_vocabulary_keeps_the_most_frequent(tmp_path: Path) -> None:
    found = corpus(tmp_path, "a a a b b c\n" * 50, tokens="word", vocabulary=4)
    assert found.vocabulary_size == 4
    assert found.decode(found.encode("a b c\n")) in {"a b <unk>\n", "a b c\n"}
    assert found.encode("zebra") == [found.unknown]


def test_the_vocabulary_is_learned_from_the_training_text_alone(tmp_path: Path) -> None:
    found = corpus(tmp_path, "seen\n" * 90 + "hidden\n" * 10, validation=0.2, tokens="word")
    assert found.encode("hidden") == [found.unknown]
    assert found.unknown in found.tokens("validation").tolist()


def test_case_counts_unless_the_job_says_otherwise(tmp_path: Path) -> None:
    text = Text(train=[str(tmp_path / "prose.txt")], lowercase=True)
    (tmp_path / "prose.txt").write_text(PROSE)
    found = open_corpus(text, tmp_path / "cache")
    assert found.encode("THE") == found.encode("the")
    assert corpus(tmp_path).encode("The") != corpus(tmp_path).encode("the")


def test_packed_files_and_several_files_give_the_same_tokens(tmp_path: Path) -> None:
    whole = corpus(tmp_path, tokens="bpe", vocabulary=300)
    half = PROSE[: len(PROSE) // 2].rindex("\n") + 1
    (tmp_path / "1.gz").write_bytes(gzip.compress(PROSE[:half].encode()))
    (tmp_path / "2.txt").write_text(PROSE[half:].replace("\n", "\r\n"), newline="")
    parts = open_corpus(
        Text(train=[str(tmp_path / "1.gz"), str(tmp_path / "2.txt")], tokens="bpe", vocabulary=300), tmp_path / "cache"
    )
    assert parts.folder != whole.folder
    assert parts.fingerprint == whole.fingerprint
    assert torch.equal(parts.tokens("train"), whole.tokens("train"))


def test_a_corpus_is_built_once(tmp_path: Path) -> None:
    first = corpus(tmp_path)
    built = (first.folder / "train").stat().st_mtime_ns
    assert corpus(tmp_path).folder == first.folder
    assert (first.folder / "train").stat().st_mtime_ns == built
    assert corpus(tmp_path, vocabulary=5).folder != first.folder


@pytest.mark.parametrize("split", SPLITS)
def test_texts_of_one_length_and_vocabulary_have_other_fingerprints(tmp_path: Path, split: str) -> None:
    found: list[Corpus] = []
    for node in ("a", "b", "c"):
        texts = dict.fromkeys(SPLITS, "ab\nab\n") | ({split: "ba\nab\n"} if node == "c" else {})
        (tmp_path / node).mkdir()
        for name, text in texts.items():
            (tmp_path / node / name).write_text(text)
        paths = {name: [str(tmp_path / node / name)] for name in SPLITS}
        found.append(open_corpus(Text.model_validate({**paths, "tokens": "character"}), tmp_path / node / "cache"))
    first, same, edited = found
    assert first.tokenizer_json == edited.tokenizer_json
    assert len(first.tokens("train")) == len(edited.tokens("train"))
    assert first.fingerprint == same.fingerprint != edited.fingerprint


def test_a_line_longer_than_the_limit_is_read_in_chunks(tmp_path: Path) -> None:
    found = corpus(tmp_path, "ab" * 100_000, tokens="character", validation=0.5)
    assert len(found.tokens("train")) + len(found.tokens("validation")) == 200_000
    assert len(found.tokens("validation")) == 200_000 - 2 * 65_536


def test_lines_are_encoded_in_large_batches() -> None:
    limit = corpus_module._BATCH_CHARACTERS
    line = "x" * (limit // 4)
    assert [len(batch) for batch in corpus_module._batch_lines([line] * 9)] == [4, 4, 1]


def test_a_share_without_a_line_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"validation is 0\.05, but no line begins"):
        corpus(tmp_path, "one line only")


def test_a_split_without_tokens_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "blank").write_text("   ")
    with pytest.raises(InputError, match="the test text has no tokens"):
        corpus(tmp_path, test=[str(tmp_path / "blank")])


def synthetic(folder: Path, **given: Any) -> Corpus:
    text = {"synthetic": {"tokens": 1_500_000, "vocabulary": 50, "test": 70, **given}, "validation": 0.1}
    return open_corpus(Text.model_validate(text), folder / "cache")


def test_a_synthetic_text_is_split_like_files(tmp_path: Path) -> None:
    found = synthetic(tmp_path, source="markov")
    train, validation, test = (found.tokens(split) for split in SPLITS)
    assert [len(train), len(validation), len(test)] == [1_350_000, 150_000, 70]
    assert {one.dtype for one in (train, validation, test)} == {torch.int32}
    steps = torch.cat([train, validation]).diff().remainder(50)  # one text: the chain doesn't break between them
    assert steps.unique().tolist() == [1, 2, 3, 4]
    assert not torch.equal(test, train[:70])
    assert found.vocabulary_size == 50
    assert found.unknown is None
    assert found.encode(found.decode(test.tolist())) == test.tolist()


def test_a_synthetic_text_is_the_same_on_every_node(tmp_path: Path) -> None:
    first, second = (synthetic(tmp_path / node) for node in ("a", "b"))
    assert first.fingerprint == second.fingerprint
    assert torch.equal(first.tokens("train"), second.tokens("train"))
    assert synthetic(tmp_path / "a").folder == first.folder != synthetic(tmp_path / "a", seed=1).folder


def test_random_targets_are_one_for_each_token_but_the_last(tmp_path: Path) -> None:
    found = synthetic(tmp_path, targets="random")
    plain = synthetic(tmp_path)
    for split in SPLITS:
        targets = found.targets(split)
        assert targets is not None
        assert torch.equal(found.tokens(split), plain.tokens(split))
        assert len(targets) == len(found.tokens(split)) - 1
        assert not torch.equal(targets, found.tokens(split)[1:])
        assert plain.targets(split) is None
    assert set(found.targets("train").tolist()) == set(range(50))  # pyright: ignore[reportOptionalMemberAccess]


def test_a_sample_of_synthetic_text_starts_with_its_first_token(tmp_path: Path) -> None:
    found = synthetic(tmp_path)
    assert found.opening("\n") == str(int(found.tokens("train")[0]))
    assert found.opening("7 8") == "7 8"
    assert corpus(tmp_path).opening("\n") == "\n"
