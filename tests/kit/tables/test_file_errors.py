# pyright: standard
import errno
import gzip
import io
from pathlib import Path

import pytest

from rolecall.kit.tables.files import TableFile
from rolecall.spec.errors import InputError

from .tables import ROWS, csv, read_all, table

GZIPPED = gzip.compress(b"y,c,n\n" + b"1,a,1\n" * 1000, mtime=0)
UNCLOSED = b'1,"a,1\n' + b"1,a,1\n" * 400_000
NOT_TEXT = "has bytes that are not text in UTF-8, first in line {} (0x{}); {}"
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
        # The byte of line 2 is in a column that the job does not use.
        ("a.csv", b"y,c,n,m\n1,a,1,\xe9\n1,\xff,1,b\n", NOT_TEXT.format(2, "e9", CONVERT)),
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


def test_a_file_that_can_not_be_read_is_no_fault_of_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(io.BytesIO):
        def read(self, _size: int | None = -1, /) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    path = csv(tmp_path / "a.csv", *ROWS)
    monkeypatch.setattr(TableFile, "open", lambda _: Failing())
    with pytest.raises(InputError) as refused:
        read_all(table(path))
    assert str(refused.value) == f"{path} can't be read: [Errno 5] Input/output error"
