"""The format of a table file: from the parameters, else from the name."""

from pathlib import Path

import pytest

from rolecall.kit.tables.files import find_tables
from rolecall.spec.errors import InputError

from .tables import table


@pytest.mark.parametrize(
    ("name", "form"),
    [("a.csv", "csv"), ("a.TSV", "tsv"), ("a.tab.gz", "tsv"), ("a.parquet", "parquet"), ("a.pq", "parquet")],
)
def test_the_name_has_the_format(tmp_path: Path, name: str, form: str) -> None:
    path = tmp_path / name
    path.write_text("")
    (found,) = find_tables([str(path)], table(path))
    assert (found.url, found.format) == (str(path), form)


def test_the_parameter_wins(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("")
    (found,) = find_tables([str(tmp_path / "a.csv")], table(tmp_path, format="tsv"))
    assert found.format == "tsv"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rows", "set data.format to csv, tsv or parquet"),
        ("a.parquet.gz", "compressed internally; decompress it first"),
    ],
)
def test_a_file_without_a_valid_format_is_an_error(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(InputError, match=message):
        find_tables([str(tmp_path / name)], table(tmp_path))
