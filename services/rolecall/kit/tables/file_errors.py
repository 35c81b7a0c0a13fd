# pyright: standard
"""The errors of input files that can't be read, decompressed or parsed, each with its cause. Torch-free."""

import codecs
import gzip
import zlib
from collections.abc import Generator
from contextlib import contextmanager, suppress

import pyarrow as pa

from rolecall.kit.tables.files import TableFile
from rolecall.kit.tables.params import Csv
from rolecall.spec.errors import InputError
from rolecall.spec.redaction import redact_text

BLOCK_BYTES = 1 << 20
"""The longest row. Arrow prefetches up to 32 blocks of this size."""
MAX_CHARS = 500
"""The most characters of a file in an error."""
_BLOCK = f"{BLOCK_BYTES >> 20} MiB"
_STRUCTURE_FAULTS = {
    "straddling object": f"a row is longer than {_BLOCK}; shorten it, or close its quote",
    "Empty CSV file or block": (
        f"it has no complete row in its first {_BLOCK}; end each row with a line break, and close every quote"
    ),
    "Empty CSV file": "it is empty; write its rows, or omit it",
}
"""The faults of files whose rows Arrow can't find, by a part of Arrow's error."""
_READ_ERRORS = (OSError, EOFError, zlib.error)
_OTHER_FORMATS = {
    b"PAR1": "it is a Parquet file: set data.format to parquet",
    b"\x1f\x8b": "it is compressed with gzip: add .gz to its name",
}
"""The advice for files that are not text, by their first bytes."""


@contextmanager
def parse_errors(file: TableFile, csv: Csv) -> Generator[None]:
    """Turn errors of readers and decompressors into an `InputError` with the file's name and its fault."""
    try:
        yield
    except (pa.ArrowException, UnicodeError, *_READ_ERRORS) as error:
        raise _explained(file, csv, error) from error


def _explained(file: TableFile, csv: Csv, error: Exception) -> InputError:
    """The error to raise instead of `error`, with advice about this fault alone.

    Raises `InputError` itself if the cause is that the file is not text.
    """
    said = redact_text(f"{error}")[:MAX_CHARS]
    if file.format == "parquet":
        return InputError(f"{file.name} can't be parsed as parquet: {said}")
    if isinstance(error, (EOFError, gzip.BadGzipFile, zlib.error)):
        advice = "a file named .gz must be a complete gzip file; copy or compress it again"
        return InputError(f"{file.name} can't be decompressed: {said}; {advice}")
    if isinstance(error, OSError):
        return InputError(f"{file.name} can't be read: {said}")
    # Rows with a wrong number of columns are skipped, unless Arrow can't decode them for our handler.
    if isinstance(error, UnicodeError) or "invalid UTF8" in said or ": Expected " in said:
        _require_text(file)
    require_text_header(file, csv)
    fault = next((fault for text, fault in _STRUCTURE_FAULTS.items() if text in said), said)
    return InputError(f"{file.name} can't be parsed as {file.format}: {fault}")


def require_text_header(file: TableFile, csv: Csv) -> None:
    """Raises `InputError` if a file's header is not text in UTF-8, or contains NUL; that explains other errors."""
    if file.format == "parquet" or csv.column_names is not None:
        return
    with suppress(*_READ_ERRORS), file.open() as stream:
        header = stream.readline(BLOCK_BYTES)
        bad = header.find(b"\0")
        try:
            codecs.getincrementaldecoder("utf-8")().decode(header)
        except UnicodeDecodeError as error:
            bad = error.start
        if bad >= 0:
            raise _not_text(file, 1, header[bad], header)


def _require_text(file: TableFile) -> None:
    """Raises `InputError` with the first line that is not text in UTF-8. Arrow names only the column, by its index.

    Not called before there is an error: columns that a job does not use may contain anything. The first line can
    therefore have its bytes in such a column, and a later one those that Arrow refuses.
    """
    decoder, line = codecs.getincrementaldecoder("utf-8")(), 1
    with suppress(*_READ_ERRORS), file.open() as stream:
        start = chunk = stream.read(BLOCK_BYTES)
        while True:
            try:
                decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                line += error.object.count(b"\n", 0, error.start)
                raise _not_text(file, line, error.object[error.start], start) from None
            if not chunk:
                return
            line += chunk.count(b"\n")
            chunk = stream.read(BLOCK_BYTES)


def _not_text(file: TableFile, line: int, byte: int, start: bytes) -> InputError:
    """The error for a byte that is not text, in a file that begins with `start`."""
    convert = "convert a text, for example with `iconv -f LATIN1 -t UTF-8`"
    advice = next((other for magic, other in _OTHER_FORMATS.items() if start.startswith(magic)), convert)
    place = f"first in line {line} (0x{byte:02x})"
    return InputError(f"{file.name} has bytes that are not text in UTF-8, {place}; {advice}")
