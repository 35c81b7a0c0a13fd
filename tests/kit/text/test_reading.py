"""Errors in a job's text are found before the rendezvous, and lines are read as they are."""

import gzip
from pathlib import Path

import pytest

from rolecall.kit.files import find
from rolecall.kit.text.params import Text
from rolecall.kit.text.reading import check_text, lines, slice_lines
from rolecall.spec.errors import InputError


def test_good_text_passes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Grüße\n")
    (tmp_path / "empty.txt").write_text("")
    check_text(Text(train=[str(tmp_path / "*.txt")]))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "the train text is empty"),
        ("Grüße".encode("latin-1"), "is not UTF-8 text"),
        (b"no gzip at all", "can't be read"),
        (gzip.compress(b"cut off" * 100, mtime=0)[:-12], "can't be read"),
    ],
)
def test_bad_text_is_named(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / ("text.gz" if "read" in expected else "text")
    path.write_bytes(content)
    with pytest.raises(InputError, match=expected) as error:
        check_text(Text(train=[str(path)]))
    assert str(path) in str(error.value)


def test_a_missing_file_of_any_split_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text\n")
    missing = str(tmp_path / "b.txt")
    with pytest.raises(InputError, match=r"b\.txt does not exist"):
        check_text(Text(train=[str(tmp_path / "a.txt")], validation=[missing]))


def test_a_long_line_is_split_and_line_ends_stay(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 65_540 + "\nend")
    read = list(lines(find([str(tmp_path / "a.txt")])))
    assert [len(line) for line in read] == [65_536, 5, 3]
    assert "".join(read) == "x" * 65_540 + "\nend"


def test_two_slices_have_every_line_once() -> None:
    given = ["ab\n", "c\n", "\n", "def"]
    for cut in range(10):
        first, second = list(slice_lines(given, 0, cut)), list(slice_lines(given, cut, None))
        assert first + second == given
    assert list(slice_lines(given, 0, 3)) == ["ab\n"]
