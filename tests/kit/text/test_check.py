"""What is wrong with a job's text is said before its gang meets."""

import gzip
from pathlib import Path

import pytest
from pydantic import ValidationError

from rolecall.kit.text.params import Text
from rolecall.kit.text.reading import check_text
from rolecall.spec.errors import InputError


def test_good_text_passes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Grüße\n")
    (tmp_path / "empty.txt").write_text("")
    check_text(Text(train=[str(tmp_path / "*.txt")]))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the train text is empty"),
        ("Grüße".encode("latin-1"), "is not UTF-8 text"),
        (b"no gzip at all", "can't be read"),
        (gzip.compress(b"cut off" * 100, mtime=0)[:-12], "can't be read"),
    ],
)
def test_bad_text_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / ("text.gz" if "read" in said else "text")
    path.write_bytes(content)
    with pytest.raises(InputError, match=said) as error:
        check_text(Text(train=[str(path)]))
    assert str(path) in str(error.value)


def test_a_missing_file_of_any_split_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text\n")
    missing = str(tmp_path / "b.txt")
    with pytest.raises(InputError, match=r"b\.txt does not exist"):
        check_text(Text(train=[str(tmp_path / "a.txt")], validation=[missing]))


def test_byte_pairs_need_a_token_for_each_byte() -> None:
    with pytest.raises(ValidationError, match="must be at least 256"):
        Text(train=["a"], tokens="bpe", vocabulary=255)
