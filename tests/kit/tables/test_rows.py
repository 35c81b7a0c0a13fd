import errno
import gzip
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rolecall.kit.tables.files import TableFile, find_tables
from rolecall.kit.tables.params import Data
from rolecall.kit.tables.rows import BadRows, Rows, read
from rolecall.spec.errors import InputError

from .tables import ROWS, csv, table


def read_all(given: Data) -> tuple[list[Rows], BadRows]:
    bad = BadRows(given.max_bad_rows)
    return list(read(find_tables(given.train, given), given, bad)), bad


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


GZIPPED = gzip.compress(b"y,c,n\n" + b"1,a,1\n" * 1000, mtime=0)
UNCLOSED = b'1,"a,1\n' + b"1,a,1\n" * 400_000


NOT_TEXT = "line {} is not text in UTF-8 (byte 0x{}), as a csv file must be; {}"
CONVERT = "convert a text, for example with `iconv -f LATIN1 -t UTF-8`"
LONG_ROW = "can't be parsed as csv: a row is longer than 1 MiB; shorten it, or close its quote"
GZIP = "a file named .gz must be a complete gzip file; copy or compress it again"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "can't be parsed as csv: it is empty; write its rows, or omit it"),
        (
            "a.csv",
            b"\n\n",
            "can't be parsed as csv: it has no complete row in its first 1 MiB; end each row with a line break, and "
            "close every quote",
        ),
        ("a.csv", b"y,c,n\n" + UNCLOSED, LONG_ROW),
        ("a.csv", b"y,c,n,m\n1,a,1,\xe9\n" + UNCLOSED, LONG_ROW),
        ("a.csv", b"y,c,n\n1,\xff,1\n", NOT_TEXT.format(2, "ff", CONVERT)),
        ("a.csv", b"y,c,n\n" + b"1,a,1\n" * 200_000 + b"1,\xff,1\n", NOT_TEXT.format(200_002, "ff", CONVERT)),
        pytest.param(
            "a.csv",
            b"y,c,n\n1,a,1\n1,\xc3",
            NOT_TEXT.format(3, "c3", CONVERT),
            # Arrow can't give our handler the invalid row, and ignores that.
            marks=pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
        ),
        ("a.csv", b"y,c,n,\xe9\n1,a,1,1\n", NOT_TEXT.format(1, "e9", CONVERT)),
        ("a.csv", "y,c,n\n1,a,1\n".encode("utf-16"), NOT_TEXT.format(1, "ff", CONVERT)),
        ("a.csv", "y,c,n\n1,a,1\n".encode("utf-16-le"), NOT_TEXT.format(1, "00", CONVERT)),
        ("a.csv", bytes(2 << 20), NOT_TEXT.format(1, "00", CONVERT)),
        ("a.csv", b"PAR1\x15\xff\n", NOT_TEXT.format(1, "ff", "it is a Parquet file: set data.format to parquet")),
        ("a.csv", GZIPPED, NOT_TEXT.format(1, "8b", "it is compressed with gzip: add .gz to its name")),
        (
            "a.csv.gz",
            GZIPPED[:-9],
            f"can't be decompressed: Compressed file ended before the end-of-stream marker was reached; {GZIP}",
        ),
        ("a.csv.gz", b"plain", f"can't be decompressed: Not a gzipped file (b'pl'); {GZIP}"),
    ],
)
def test_a_damaged_file_is_named_with_its_own_fault(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as refused:
        read_all(table(tmp_path / name))
    assert str(refused.value) == f"{tmp_path / name} {message}"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv.gz", GZIPPED[:40] + b"\xff" * 9 + GZIPPED[49:], "can't be decompressed"),
        ("a.parquet", b"plain", "can't be parsed as parquet"),
        ("a.txt", b"y,c,n\n1,a,1\n", "set data.format"),
    ],
)
def test_other_damaged_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_all(table(tmp_path / name))


@pytest.mark.parametrize("options", [{}, {"csv": {"column_names": ["y", "c", "n", "m"]}}])
def test_a_wrong_name_of_a_column_is_the_error_whatever_other_columns_contain(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    (tmp_path / "a.csv").write_bytes(b"y,c,n,m\n1,a,1,\xe9\n1,a,1,\0\n")
    with pytest.raises(InputError, match=r"has no column 'o'; its columns are: y, c, n, m") as refused:
        read_all(table(tmp_path / "a.csv", numeric=["o"], **options))
    assert "is not a header" not in str(refused.value), "line 1 has the other columns"


def test_a_file_that_can_not_be_read_is_no_fault_of_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(io.BytesIO):
        def read(self, _size: int | None = -1, /) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    path = csv(tmp_path / "a.csv", *ROWS)
    monkeypatch.setattr(TableFile, "open", lambda _: Failing())
    with pytest.raises(InputError) as refused:
        read_all(table(path))
    assert str(refused.value) == f"{path} can't be read: [Errno 5] Input/output error"


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
