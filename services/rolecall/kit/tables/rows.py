"""Reads input files in pieces of bounded size and sorts out the rows that can't be parsed. Torch-free.

Every pass over the same files sees the same good rows with the same numbers.
"""
# pyarrow.compute makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

import difflib
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rolecall.kit.tables.files import File
from rolecall.kit.tables.params import Categorical, Csv, Data, Label, Numeric
from rolecall.spec.errors import InputError

_BLOCK_BYTES = 1 << 20  # Arrow reads up to 32 blocks ahead of the parser
_PIECE_ROWS = 32_768
_REPORTED = 5
_NUMBER = r"^-?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$"
_YES, _NO = ["1", "1.0", "true", "True", "TRUE"], ["0", "0.0", "false", "False", "FALSE"]


@dataclass(frozen=True, slots=True)
class Values:
    """The values of one categorical column in a piece of `b` rows, flat: n values, n ≥ 0."""

    texts: pa.Array
    """[n] strings, none missing."""
    rows: NDArray[np.int64]
    """[n] the row of each value, in [0, b)."""
    positions: NDArray[np.int64]
    """[n] its place among its row's values, in [0, max_values)."""

    def take(self, kept: NDArray[np.int64]) -> "Values":
        """The values of the rows `kept`, which rise; they are counted anew."""
        chosen = np.isin(self.rows, kept)
        rows = np.searchsorted(kept, self.rows[chosen])
        return Values(self.texts.filter(pa.array(chosen)), rows, self.positions[chosen])


@dataclass(frozen=True, slots=True)
class Rows:
    """A piece of good rows, `b` of them."""

    numbers: NDArray[np.int64]
    """[b] each row's number over all files of its list."""
    labels: NDArray[np.float32]
    """[b] 0 or 1."""
    categorical: list[Values]
    """By column, in the parameters' order."""
    numeric: list[NDArray[np.float64]]
    """[b] by column, in the parameters' order; NaN where the value is missing."""

    def take(self, kept: NDArray[np.int64]) -> "Rows":
        """The piece's rows `kept`, which rise."""
        categorical = [values.take(kept) for values in self.categorical]
        return Rows(self.numbers[kept], self.labels[kept], categorical, [column[kept] for column in self.numeric])


@dataclass(slots=True)
class BadRows:
    """Counts the rows that can't be parsed and remembers the first."""

    limit: int
    count: int = 0
    first: list[str] = field(default_factory=lambda: [])

    def add(self, file: File, row: int, reason: str) -> None:
        """Notes that `row` (from 1, as an editor counts lines) of `file` can't be parsed."""
        self.count += 1
        if len(self.first) < _REPORTED:
            self.first.append(f"{file.url} row {row}: {reason}")

    def check(self) -> None:
        """Raises `InputError` once there are more than the limit."""
        if self.count > self.limit:
            rows = "1 row" if self.count == 1 else f"at least {self.count} rows"
            raise InputError(
                f"{rows} can't be parsed and data.max_bad_rows is {self.limit}; {'; '.join(self.first)}; "
                "correct the rows or raise data.max_bad_rows"
            )


def read(files: list[File], data: Data, bad: BadRows) -> Iterator[Rows]:
    """All good rows of `files`, piece by piece; raises `InputError` past the limit of bad ones."""
    start = 0
    for file in files:
        require_columns(file, data)
        for piece in _pieces(file, data, bad):
            yield _parse(piece, start, data, bad)
            start += piece.batch.num_rows
            bad.check()
        bad.check()


def require_columns(file: File, data: Data) -> None:
    """Raises `InputError` unless `file` is readable and has all columns of `data`."""
    names = column_names(file, data.csv)
    for column in data.columns:
        if column not in names:
            near = difflib.get_close_matches(column, names, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise InputError(f"{file.url} has no column {column!r}; {hint}its columns are: {', '.join(names)}")


def column_names(file: File, csv: Csv) -> list[str]:
    """The names of the file's columns."""
    with file.open() as stream, _explained(file):
        if file.format == "parquet":
            return list(pq.ParquetFile(stream).schema_arrow.names)
        with pacsv.open_csv(stream, _read_options(csv), _parse_options(file, csv, lambda _: "skip")) as reader:
            return list(reader.schema.names)


@dataclass(frozen=True, slots=True)
class _Piece:
    file: File
    batch: pa.RecordBatch
    first: int
    """How an editor would count its first row, if no row before it had been skipped."""
    skipped: list[int]
    """The rows (from 1) with a wrong number of columns that were met so far."""

    def row(self, index: int) -> int:
        """The row, as an editor counts lines, of the piece's row `index`."""
        row = self.first + index
        for skipped in self.skipped:
            if skipped > row:
                break
            row += 1
        return row


def _pieces(file: File, data: Data, bad: BadRows) -> Iterator[_Piece]:
    skipped: list[int] = []
    first = 2 if file.format != "parquet" and data.csv.column_names is None else 1
    with file.open() as stream, _explained(file):
        batches = _parquet(stream, data) if file.format == "parquet" else _csv(file, stream, data, bad, skipped)
        for batch in batches:
            yield _Piece(file, batch, first, skipped)
            first += batch.num_rows


def _parquet(stream: BinaryIO, data: Data) -> Iterator[pa.RecordBatch]:
    return pq.ParquetFile(stream).iter_batches(_PIECE_ROWS, columns=data.columns)


def _csv(file: File, stream: BinaryIO, data: Data, bad: BadRows, skipped: list[int]) -> Iterator[pa.RecordBatch]:
    def skip(row: Any) -> str:
        skipped.append(row.number)
        bad.add(file, row.number, f"{row.actual_columns} columns instead of {row.expected_columns}")
        return "skip"

    convert = pacsv.ConvertOptions(include_columns=data.columns, column_types=dict.fromkeys(data.columns, pa.string()))
    with pacsv.open_csv(stream, _read_options(data.csv), _parse_options(file, data.csv, skip), convert) as reader:
        yield from reader


def _read_options(csv: Csv) -> pacsv.ReadOptions:
    # Rows are numbered only when one thread parses.
    return pacsv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES, column_names=csv.column_names)


def _parse_options(file: File, csv: Csv, skip: Callable[[Any], str]) -> pacsv.ParseOptions:
    delimiter = csv.delimiter or ("\t" if file.format == "tsv" else ",")
    return pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=skip)


@contextmanager
def _explained(file: File) -> Iterator[None]:
    """Whatever the readers and decompressors raise about the content, said with the file's name."""
    try:
        yield
    except (pa.ArrowException, OSError, EOFError, zlib.error) as error:
        raise InputError(f"{file.url} can't be parsed as {file.format}: {error}") from error


def _parse(piece: _Piece, start: int, data: Data, bad: BadRows) -> Rows:
    reasons: dict[int, str] = {}
    labels = _labels(_cleaned(piece.batch[data.label.column], data.missing), data.label, reasons)
    numeric = [_numbers(piece, column, data.missing, reasons) for column in data.numeric]
    for index in sorted(reasons):
        bad.add(piece.file, piece.row(index), reasons[index])
    good = np.delete(np.arange(piece.batch.num_rows), list(reasons))
    kept = piece.batch.take(pa.array(good)) if reasons else piece.batch
    categorical = [_values(piece.file, kept[column.column], column, data.missing) for column in data.categorical]
    return Rows(start + good, labels[good], categorical, [column[good] for column in numeric])


def _labels(column: pa.Array, label: Label, reasons: dict[int, str]) -> NDArray[np.float32]:
    texts = _texts(column)
    yes = _is_one_of(texts, _YES if label.positive is None else [_text(value) for value in label.positive])
    legal = yes | _is_one_of(texts, _NO) if label.positive is None else texts.is_valid().to_numpy(False)
    for index in np.flatnonzero(~legal):
        given = texts[index].as_py()
        why = "is missing" if given is None else f"is {given!r}, not 0 or 1; name data.label.positive for other values"
        reasons[int(index)] = f"the label {label.column} {why}"
    return yes.astype(np.float32)


def _is_one_of(texts: pa.Array, values: Sequence[str]) -> NDArray[np.bool_]:
    return pc.is_in(texts, pa.array(values, pa.string())).to_numpy(zero_copy_only=False)


def _text(value: str | float) -> str:
    """A parameter's value, written as Arrow writes it."""
    return value if isinstance(value, str) else pa.scalar(value).cast(pa.string()).as_py()


def _cleaned(column: pa.Array, missing: Sequence[str]) -> pa.Array:
    """Texts without the spaces around them, those that mean "no value" as null; other types as they are."""
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column
    trimmed = pc.utf8_trim_whitespace(_texts(column))
    return pc.if_else(pc.is_in(trimmed, pa.array(missing, pa.string())), pa.scalar(None, pa.string()), trimmed)


def _texts(column: pa.Array) -> pa.Array:
    return column if column.type == pa.string() else column.cast(pa.string())


def _numbers(piece: _Piece, column: Numeric, missing: Sequence[str], reasons: dict[int, str]) -> NDArray[np.float64]:
    given = _cleaned(piece.batch[column.column], missing)
    if not (pa.types.is_string(given.type) or _is_number(given.type)):
        raise InputError(f"{piece.file.url}: column {column.column!r} holds {given.type}, not numbers")
    parsable = pc.match_substring_regex(given, _NUMBER) if pa.types.is_string(given.type) else given.is_valid()
    readable = pc.if_else(parsable, given, pa.scalar(None, given.type)).cast(pa.float64(), safe=False)
    numbers = readable.to_numpy(zero_copy_only=False).astype(np.float64)
    garbled = ~pc.or_kleene(parsable, given.is_null()).to_numpy(zero_copy_only=False)
    for index in np.flatnonzero(garbled | np.isinf(numbers)):
        reasons.setdefault(int(index), f"{column.column} is {given[index].as_py()!r}, not a finite number")
    return numbers


def _is_number(kind: pa.DataType) -> bool:
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_null)
    return any(test(kind) for test in tests)


def _values(file: File, given: pa.Array, column: Categorical, missing: Sequence[str]) -> Values:
    if pa.types.is_nested(given.type) and not _is_list(given.type):
        raise InputError(f"{file.url}: column {column.column!r} holds {given.type}; make it a text, number or list")
    if column.separator is not None and not _is_list(given.type):
        given = pc.split_pattern(_texts(given), column.separator)
    if _is_list(given.type):
        return _first_values(pc.list_parent_indices(given), given.flatten(), column.max_values, missing)
    return _first_values(pa.array(np.arange(len(given))), given, 1, missing)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)  # Polars writes the large ones.


def _first_values(parents: pa.Array, flat: pa.Array, most: int, missing: Sequence[str]) -> Values:
    texts = _cleaned(_texts(flat), missing)
    present = pc.fill_null(pc.not_equal(texts, ""), False)
    rows = parents.filter(present).to_numpy(zero_copy_only=False).astype(np.int64)
    positions = np.arange(len(rows)) - np.searchsorted(rows, rows)
    kept = positions < most
    return Values(texts.filter(present).filter(pa.array(kept)), rows[kept], positions[kept])
