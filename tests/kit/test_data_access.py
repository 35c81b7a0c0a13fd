"""The access rules of the operator; `tests/security/test_files_of_jobs.py` attacks them."""

from pathlib import Path

import pytest

from rolecall.kit.data_access import DataAccess, read_access
from rolecall.spec.errors import InputError


@pytest.fixture
def access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataAccess:
    """Access to a folder and to one scheme."""
    monkeypatch.setenv("ROLECALL_DATA_ROOTS", str(tmp_path))
    monkeypatch.setenv("ROLECALL_DATA_SCHEMES", "s3")
    return read_access()


def test_the_description_of_valid_paths_names_roots_and_schemes(access: DataAccess, tmp_path: Path) -> None:
    assert access.legal == f"a path below {tmp_path}, or a URL of s3"


def test_urls_of_allowed_schemes_are_no_local_paths(access: DataAccess) -> None:
    assert access.plain_path("s3://bucket/rows.csv") is None
    assert access.plain_path("rows.csv") == "rows.csv"
    assert access.plain_path("file:///rows.csv") == "/rows.csv"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("gs://bucket/rows", r"jobs may not read gs: URLs; .*\(ROLECALL_DATA_SCHEMES\): s3"),
        ("data:text/plain,a", "jobs may not read data: URLs"),
        ("~/rows", "is not expanded; write the full path"),
        ("zip://a::s3://b", "use a single path or URL"),
        ("a\0b", "contains a NUL character"),
    ],
)
def test_the_error_names_what_is_wrong(access: DataAccess, path: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        access.plain_path(path)


def test_an_absolute_path_is_checked_as_written_and_a_relative_one_is_left_to_the_node(access: DataAccess) -> None:
    access.check_written("rows.csv")
    with pytest.raises(InputError, match="/etc/passwd is outside the folders that jobs may read"):
        access.check_written("/etc/passwd")


def test_files_are_opened_below_a_root_only(access: DataAccess, tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(b"1")
    with access.open(str(tmp_path / "rows")) as file:
        assert file.read() == b"1"
    with pytest.raises(InputError, match="outside the folders"):
        access.open("/etc/hostname")
    with pytest.raises(InputError, match=f"; relative paths are resolved against {Path.cwd()}$"):
        access.open("README.md")
    with pytest.raises(InputError, match="is not a regular file"):
        access.open(str(tmp_path))
