# pyright: standard
import gzip
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rolecall.kit.tables.params import Data
from rolecall.spec.errors import InputError

from .tables import ROWS, csv, read_all, table


def labels(given: Data) -> list[float]:
    return np.concatenate([chunk.labels for chunk in read_all(given)[0]]).tolist()


def test_csv(tmp_path: Path) -> None:
    (rows,), bad = read_all(table(csv(tmp_path / "a.csv", *ROWS)))
    assert rows.labels.tolist() == [1, 0, 1, 0, 1, 0]
    assert rows.categorical[0].texts.to_pylist() == ["a", "b", "a", "c", "b"]
    assert rows.categorical[0].rows.tolist() == [0, 1, 2, 4, 5]
    np.testing.assert_array_equal(rows.numeric[0], [1, 2, 3, 4, np.nan, 6])
    assert bad.count == 0


def test_gz_tsv_and_globs_in_the_order_of_names(tmp_path: Path) -> None:
    for name, label in (("b", "0"), ("a", "1")):
        with gzip.open(tmp_path / f"{name}.tsv.gz", "wt") as file:
            file.write(f"y\tc\tn\n{label}\tx\t1\n")
    assert labels(table(tmp_path / "*.tsv.gz")) == [1, 0]


def test_several_files_and_urls(tmp_path: Path) -> None:
    paths = [str(csv(tmp_path / "a.csv", "1,a,1")), f"file://{csv(tmp_path / 'b.csv', '0,a,1')}"]
    assert labels(table(paths)) == [1, 0]


@pytest.mark.parametrize("kind", [pa.list_(pa.string()), pa.large_list(pa.large_string())])
def test_parquet_of_other_types_and_lists(tmp_path: Path, kind: pa.DataType) -> None:
    lists = pa.array([["x", "y", "z"], []], kind)
    columns = pa.table({"y": [True, False], "c": [7, None], "n": pa.array([1, 2], pa.int8()), "m": lists})
    pq.write_table(columns, tmp_path / "a.parquet")
    categorical = ["c", {"column": "m", "max_values": 2}]
    (rows,), _ = read_all(table(tmp_path / "a.parquet", categorical=categorical))
    assert rows.labels.tolist() == [1, 0]
    assert rows.categorical[0].texts.to_pylist() == ["7"]
    assert rows.categorical[1].texts.to_pylist() == ["x", "y"]
    assert rows.categorical[1].positions.tolist() == [0, 1]


def test_separated_values(tmp_path: Path) -> None:
    categorical = [{"column": "c", "separator": "|", "max_values": 3}]
    path = csv(tmp_path / "a.csv", "1, a | b ,1", "0,,1", "1,|c|?|d,1")
    (rows,), _ = read_all(table(path, categorical=categorical))
    assert rows.categorical[0].texts.to_pylist() == ["a", "b", "c", "d"]
    assert rows.categorical[0].rows.tolist() == [0, 0, 2, 2]


def test_no_header_and_another_delimiter(tmp_path: Path) -> None:
    path = csv(tmp_path / "a.csv", "0;b;2", header="1;a;1")
    assert labels(table(path, csv={"delimiter": ";", "column_names": ["y", "c", "n"]})) == [1, 0]


def test_unused_columns_may_contain_anything(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"y,c,n,m\n1,a,1,\xff\0\n")
    assert labels(table(tmp_path / "a.csv")) == [1]


def test_named_positive_values(tmp_path: Path) -> None:
    path = csv(tmp_path / "a.csv", "yes,a,1", "no,a,1", "maybe,a,1")
    assert labels(table(path, label={"column": "y", "positive": ["yes", "maybe"]})) == [1, 0, 1]


def test_bad_rows_are_counted_with_file_and_line(tmp_path: Path) -> None:
    path = csv(tmp_path / "a.csv", "1,a,1", "1,a", "0,b,many", "2,b,1", "0,b,inf", ",b,1", "0,b,3,4", "0,b,4")
    chunks, bad = read_all(table(path, max_bad_rows=6))
    assert sum(len(chunk.labels) for chunk in chunks) == 2
    assert bad.count == 6
    assert f"{path} row 3: 2 columns instead of 3, split at ','" in bad.first
    assert f"{path} row 4: n is 'many', not a finite number" in bad.first


def test_too_many_bad_rows_say_what_to_do(tmp_path: Path) -> None:
    path = csv(tmp_path / "a.csv", "1,a,1", "0,b,many")
    with pytest.raises(
        InputError, match=r"1 row can't be parsed and data.max_bad_rows is 0; .*a.csv row 3: n is 'many'"
    ):
        read_all(table(path))


def test_a_column_that_is_not_there(tmp_path: Path) -> None:
    path = csv(tmp_path / "a.csv", *ROWS, header="y,c,nn")
    with pytest.raises(InputError, match=r"has no column 'n'; did you mean 'nn'. its columns are: y, c, nn"):
        read_all(table(path))


@pytest.mark.parametrize("options", [{}, {"csv": {"column_names": ["y", "c", "n", "m"]}}])
def test_a_wrong_name_of_a_column_is_the_error_whatever_other_columns_contain(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    (tmp_path / "a.csv").write_bytes(b"y,c,n,m\n1,a,1,\xe9\n1,a,1,\0\n")
    with pytest.raises(InputError, match=r"has no column 'o'; its columns are: y, c, n, m") as refused:
        read_all(table(tmp_path / "a.csv", numeric=["o"], **options))
    assert "is not a header" not in str(refused.value), "line 1 has the other columns"


PASSWD = "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {},
            "has no column 'y'; its columns are: root:x:0:0:root:/root:/bin/bash; this is line 1, split at ',': if "
            "another character separates the columns, set data.csv.delimiter; if line 1 is not a header, set "
            "data.csv.column_names",
        ),
        ({"csv": {"column_names": ["y", "c", "n"]}}, "row 1: 1 column instead of 3, split at ','; "),
        ({"csv": {"column_names": ["x", "c", "n"]}}, "columns are: x, c, n; these are data.csv.column_names"),
    ],
)
def test_a_text_that_is_no_table_is_named_with_what_was_expected(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    (tmp_path / "passwd.csv").write_text(PASSWD)
    with pytest.raises(InputError, match=re.escape(message)):
        read_all(table(tmp_path / "passwd.csv", **options))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere.csv", "does not exist"),
        ("*.nothing", "matches no file"),
        ("", "is a folder"),
        ("s3://bucket/a.csv", "may not read s3: URLs"),
    ],
)
def test_files_that_are_not_there(tmp_path: Path, path: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_all(table(path if "://" in path else tmp_path / path))
