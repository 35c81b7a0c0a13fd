"""Input files are found in order, described by what changes with them, and opened decompressed."""

import gzip
import os
from pathlib import Path

import pytest

from rolecall.kit.files import find
from rolecall.spec.errors import InputError


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that jobs may read."""
    monkeypatch.setenv("ROLECALL_DATA_ROOTS", str(tmp_path))
    return tmp_path


def test_files_keep_the_order_of_paths_and_globs_that_of_names(root: Path) -> None:
    for name in ("b.csv", "a.csv", "c.txt"):
        (root / name).write_text(name)
    found = find([str(root / "c.txt"), str(root / "*.csv")])
    assert [Path(file.url).name for file in found] == ["c.txt", "a.csv", "b.csv"]


def test_an_error_about_a_glob_names_no_match_in_a_closed_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = root / "data"
    closed.mkdir()
    (closed / "hidden.csv").touch()
    monkeypatch.setenv("ROLECALL_DATA", str(closed))
    with pytest.raises(InputError, match=r"\*\.csv is outside the folders") as failed:
        find([str(root / "*/*.csv")])
    assert "hidden" not in str(failed.value)


def test_a_pipe_is_not_called_a_folder(root: Path) -> None:
    os.mkfifo(root / "pipe")
    with pytest.raises(InputError, match="pipe is not a regular file"):
        find([str(root / "pipe")])


@pytest.mark.parametrize("name", ["rows.CSV", "rows.csv.gz"])
def test_a_file_is_decompressed_and_its_suffix_is_that_of_its_content(root: Path, name: str) -> None:
    content = b"y\n1\n"
    (root / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    (file,) = find([str(root / name)])
    assert file.suffix == "csv"
    with file.open() as opened:
        assert opened.read() == content


@pytest.mark.parametrize("given", ["0F0,0F1\n1F0,1F1", "*\n.csv", "~\nrows", "/\nrows", "sub\nfolder"])
def test_an_error_about_a_path_with_a_line_break_is_one_line(
    given: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    (root / "sub\nfolder").mkdir()
    with pytest.raises(InputError) as caught:
        find([given])
    assert str(caught.value).startswith(given.replace("\n", "\\n"))
    assert len(str(caught.value).splitlines()) == 1
    path = root / "a\nb.csv"
    path.touch()
    (file,) = find([str(path)])
    path.unlink()
    with pytest.raises(InputError, match=r"a\\nb\.csv can't be read: "):
        file.open()


def test_the_identity_changes_with_the_content(root: Path) -> None:
    path = root / "text"
    path.write_text("one")
    (before,) = find([str(path)])
    assert find([str(path)]) == [before]
    path.write_text("two")
    os.utime(path, (1, 1))
    assert find([str(path)]) != [before]


def test_a_relative_path_starts_at_the_working_directory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "text").write_text("one")
    monkeypatch.chdir(root)
    (file,) = find(["text"])
    with file.open() as opened:
        assert opened.read() == b"one"
    text = f"rows does not exist on this node, which resolves relative paths against {root}; "
    with pytest.raises(InputError, match=text):
        find(["rows"])


@pytest.mark.parametrize(
    ("path", "message"),
    [("missing", "does not exist"), ("*.csv", "matches no file"), ("folder", "is a folder; name its files")],
)
def test_a_path_without_a_file_is_an_error(root: Path, path: str, message: str) -> None:
    (root / "folder").mkdir()
    with pytest.raises(InputError, match=message):
        find([str(root / path)])


def test_a_file_that_disappears_is_an_error(root: Path) -> None:
    (root / "text").write_text("one")
    (file,) = find([str(root / "text")])
    (root / "text").unlink()
    with pytest.raises(InputError, match=r"text can't be read: No such file"):
        file.open()
