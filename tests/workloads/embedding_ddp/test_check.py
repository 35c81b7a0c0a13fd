# pyright: standard
"""Refusals of a job before its gang starts."""

import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.kit.tables.tables import ROWS, csv

from rolecall.spec.errors import InputError
from rolecall.spec.role import Role
from rolecall.workloads.embedding_ddp.check import check_counts, check_node
from rolecall.workloads.embedding_ddp.params import Params

from .tables import params

NOBODY = 65_534


def refusal(path: Path | str, **data: object) -> str:
    with pytest.raises(InputError) as caught:
        check_node(params(path, data=data), Role.TRAINER)
    return str(caught.value)


@contextmanager
def without_privileges() -> Generator[None]:
    """Root may read every file: then be nobody for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def public(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A data root that every user may enter, unlike pytest's own folders."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setenv("ROLECALL_DATA_ROOTS", folder)
        yield Path(folder)


def test_good_files_pass_and_only_trainers_look(tmp_path: Path) -> None:
    check_node(params(csv(tmp_path / "a.csv", *ROWS)), Role.TRAINER)
    check_node(params(tmp_path / "nowhere.csv"), Role.PARAMETER_SERVER)
    check_node(Params.model_validate({"data": {"synthetic": {}}}), Role.TRAINER)


@pytest.mark.parametrize("split", ["test", "validation"])
def test_every_split_is_looked_at(tmp_path: Path, split: str) -> None:
    path = tmp_path / "nowhere.csv"
    message = refusal(csv(tmp_path / "a.csv", *ROWS), **{split: str(path)})
    assert message == f"{path} does not exist on this node; paths must be the same on every node that reads them"


def test_a_file_that_may_not_be_read(public: Path) -> None:
    path = csv(public / "a.csv", *ROWS)
    path.chmod(0)
    with without_privileges():
        assert refusal(path) == f"{path} can't be read: Permission denied"


def test_a_folder_that_may_not_be_entered(public: Path) -> None:
    closed = public / "closed"
    closed.mkdir()
    path = csv(closed / "a.csv", *ROWS)
    closed.chmod(0)
    with without_privileges():
        message = refusal(path)
    assert str(path) in message
    assert "Permission denied" in message


def test_a_path_below_a_file(tmp_path: Path) -> None:
    path = csv(tmp_path / "a.csv", *ROWS) / "b.csv"
    assert "Not a directory" in refusal(path)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_column_that_is_not_there_is_named_with_the_nearest(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"a.{form}"
    if form == "csv":
        csv(path, "1,a,1", header="y,city,n")
    else:
        pq.write_table(pa.table({"y": [1], "city": ["a"], "n": [1.0]}), path)
    message = refusal(path, categorical=["ctiy"])
    assert message == f"{path} has no column 'ctiy'; did you mean 'city'? its columns are: y, city, n"


def test_a_parquet_label_of_another_type_is_found_before_the_gang(tmp_path: Path) -> None:
    pq.write_table(pa.table({"y": [["a"]], "c": ["a"], "n": [1.0]}), tmp_path / "a.parquet")
    message = refusal(tmp_path / "a.parquet", label={"column": "y", "numeric": True})
    assert message == f"{tmp_path}/a.parquet: the label 'y' has type list<element: string>; it must contain numbers"


def test_every_file_of_a_list_is_looked_at(tmp_path: Path) -> None:
    good = csv(tmp_path / "a.csv", *ROWS)
    other = csv(tmp_path / "b.csv", *ROWS, header="y,c,zzz")
    message = refusal(str(tmp_path / "*.csv"))
    assert str(other) in message
    assert str(good) not in message


def test_a_glob_without_a_match(tmp_path: Path) -> None:
    assert refusal(tmp_path / "*.csv") == f"{tmp_path}/*.csv matches no file"


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    assert "is a folder; name its files, for example by folder/*" in refusal(tmp_path)


def test_a_batch_has_a_row_for_every_trainer(tmp_path: Path) -> None:
    given = params(tmp_path / "a.csv", batch_size=4)
    check_counts(given, {Role.TRAINER: 4})
    with pytest.raises(ValueError, match="set it to 5 or more, or use at most 4 trainers"):
        check_counts(given, {Role.TRAINER: 5})
