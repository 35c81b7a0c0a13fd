# pyright: standard
"""Reads input files in chunks of bounded size and skips rows that can't be parsed. Torch-free.

Every pass over the same files returns the same valid rows with the same row numbers.
"""
# pyarrow.compute creates its functions at import.
# pyright: reportAttributeAccessIssue=false

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rolecall.kit.tables.file_errors import BLOCK_BYTES, MAX_CHARS, parse_errors, require_text_header
from rolecall.kit.tables.files import TableFile
from rolecall.kit.tables.params import MAX_CLASSES, Categorical, Csv, Data, Label, plain_text
from rolecall.spec.errors import InputError
from rolecall.spec.visible import one_line

_CHUNK_ROWS = 32_768
_MAX_REPORTS = 5
_NUMBER = r"^-?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$"
_YES, _NO = ["1", "1.0", "true", "True", "TRUE"], ["0", "0.0", "false", "False", "FALSE"]


@dataclass(frozen=True, slots=True)
class Values:
    """The values of one categorical column in a chunk of `b` rows, flattened to n values."""

    texts: pa.Array
    """[n] strings, without nulls."""
    rows: NDArray[np.int64]
    """[n] the row index of each value, in [0, b)."""
    positions: NDArray[np.int64]
    """[n] its index among its row's values, in [0, max_values)."""

    def take(self, kept: NDArray[np.int64]) -> "Values":
        """The values of the rows `kept`, sorted ascending and renumbered from 0."""
        chosen = np.isin(self.rows, kept)
        rows = np.searchsorted(kept, self.rows[chosen])
        return Values(self.texts.filter(pa.array(chosen)), rows, self.positions[chosen])


@dataclass(frozen=True, slots=True)
class Rows:
    """A chunk of `b` valid rows."""

    numbers: NDArray[np.int64]
    """[b] row numbers, counted over all files of the split."""
    labels: NDArray[np.float32]
    """[b] 0 or 1, the index of the class, or the number to predict."""
    categorical: list[Values]
    """One for each column, in the parameters' order."""
    numeric: list[NDArray[np.float64]]
    """[b] for each column, in the parameters' order; NaN for missing values."""

    def take(self, kept: NDArray[np.int64]) -> "Rows":
        """The rows `kept`, sorted ascending."""
        categorical = [values.take(kept) for values in self.categorical]
        return Rows(self.numbers[kept], self.labels[kept], categorical, [column[kept] for column in self.numeric])


@dataclass(slots=True)
class BadRows:
    """Counts rows that can't be parsed and keeps the reports of the first ones."""

    limit: int
    count: int = 0
    first: list[str] = field(default_factory=lambda: [])

    def add(self, file: TableFile, row: int, reason: str) -> None:
        """Report that `row` of `file` (line number from 1, as in an editor) can't be parsed."""
        self.count += 1
        if len(self.first) < _MAX_REPORTS:
            self.first.append(f"{file.name} row {row}: {reason}")

    def check(self) -> None:
        """Raises `InputError` if there are more than `limit`."""
        if self.count > self.limit:
            rows = "1 row" if self.count == 1 else f"at least {self.count} rows"
            raise InputError(
                f"{rows} can't be parsed and data.max_bad_rows is {self.limit}; {'; '.join(self.first)}; "
                "correct the rows or raise data.max_bad_rows"
            )


def read(files: list[TableFile], data: Data, bad: BadRows) -> Iterator[Rows]:
    """All valid rows of `files` in chunks; raises `InputError` past the limit of bad rows."""
    start = 0
    for file in files:
        require_columns(file, data)
        for chunk in _chunks(file, data, bad):
            yield _parse(chunk, start, data, bad)
            start += chunk.batch.num_rows
            bad.check()
        bad.check()


def require_columns(file: TableFile, data: Data) -> None:
    """Raises `InputError` unless `file` is readable, has all columns of `data`, and the label has a usable type."""
    schema, names = _schema(file, data.csv)
    for column in data.columns:
        if column not in names:
            require_text_header(file, data.csv)
            near = difflib.get_close_matches(column, names, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            given = one_line(", ".join(names))[:MAX_CHARS]
            advice = "" if near or file.format == "parquet" else _header_advice(file, data, names)
            raise InputError(f"{file.name} has no column {column!r}; {hint}its columns are: {given}{advice}")
    if file.format == "parquet":  # Columns of CSV files are read as text.
        _require_label_type(file, data.label, schema.field(data.label.column).type)


def _header_advice(file: TableFile, data: Data, names: Sequence[str]) -> str:
    """Says how the columns of a CSV file were found, and what to set if no column of `data` was."""
    if data.csv.column_names is not None:
        return "; these are data.csv.column_names"
    if any(column in names for column in data.columns):
        return ""
    return (
        f"; this is line 1, split at {_delimiter(file, data.csv)!r}: if another character separates the columns, set "
        "data.csv.delimiter; if line 1 is not a header, set data.csv.column_names"
    )


def _schema(file: TableFile, csv: Csv) -> tuple[pa.Schema, list[str]]:
    """The file's columns, and their names."""
    with file.open() as stream, parse_errors(file, csv):
        if file.format == "parquet":
            schema = pq.ParquetFile(stream).schema_arrow
        else:
            with pacsv.open_csv(stream, _read_options(csv), _parse_options(file, csv, lambda _: "skip")) as reader:
                schema = reader.schema
        return schema, list(schema.names)


def _require_label_type(file: TableFile, label: Label, kind: pa.DataType) -> None:
    usable = _is_text(kind) or _is_number(kind) if label.numeric else not pa.types.is_nested(kind)
    if not usable:
        legal = "numbers" if label.numeric else "text, numbers or booleans"
        raise InputError(f"{file.name}: the label {label.column!r} has type {kind}; it must contain {legal}")


def distinct_labels(files: list[TableFile], data: Data) -> list[str]:
    """The distinct values of the label, sorted: as numbers if all are numbers, else as text.

    Raises `InputError` if there are fewer than 2 or more than `MAX_CLASSES`.
    """
    label = data.model_copy(update={"categorical": (), "numeric": ()})
    found: set[str] = set()
    for file in files:
        require_columns(file, data)
        for chunk in _chunks(file, label, BadRows(0)):  # The pass that reads all columns reports bad rows.
            found.update(pc.unique(_label_texts(chunk, data).drop_null()).to_pylist())
            if len(found) > MAX_CLASSES:
                raise InputError(
                    f"the label {data.label.column!r} has more than {MAX_CLASSES} distinct values; list "
                    "data.label.classes, or set data.label.numeric to predict a number"
                )
    if len(found) < 2:
        values = f"only the value {found.pop()!r}" if found else "no values"
        raise InputError(
            f"the label {data.label.column!r} has {values} in the training files; classes need at least 2 values"
        )
    texts = sorted(found)
    return sorted(texts, key=float) if all(re.fullmatch(_NUMBER, text) for text in texts) else texts


@dataclass(frozen=True, slots=True)
class _Chunk:
    file: TableFile
    batch: pa.RecordBatch
    first: int
    """The line number of its first row, not counting skipped rows."""
    skipped: list[int]
    """Line numbers (from 1) of the rows so far with a wrong number of columns."""

    def row(self, index: int) -> int:
        """The line number of the chunk's row `index`."""
        row = self.first + index
        for skipped in self.skipped:
            if skipped > row:
                break
            row += 1
        return row


def _chunks(file: TableFile, data: Data, bad: BadRows) -> Iterator[_Chunk]:
    skipped: list[int] = []
    first = 2 if file.format != "parquet" and data.csv.column_names is None else 1
    with file.open() as stream, parse_errors(file, data.csv):
        if file.format == "parquet":
            batches = pq.ParquetFile(stream).iter_batches(_CHUNK_ROWS, columns=data.columns)
        else:
            batches = _csv(file, stream, data, bad, skipped)
        for batch in batches:
            yield _Chunk(file, batch, first, skipped)
            first += batch.num_rows


def _csv(file: TableFile, stream: BinaryIO, data: Data, bad: BadRows, skipped: list[int]) -> Iterator[pa.RecordBatch]:
    def skip(row: Any) -> str:
        skipped.append(row.number)
        found = "1 column" if row.actual_columns == 1 else f"{row.actual_columns} columns"
        bad.add(file, row.number, f"{found} instead of {row.expected_columns}, split at {_delimiter(file, data.csv)!r}")
        return "skip"

    convert = pacsv.ConvertOptions(include_columns=data.columns, column_types=dict.fromkeys(data.columns, pa.string()))
    with pacsv.open_csv(stream, _read_options(data.csv), _parse_options(file, data.csv, skip), convert) as reader:
        yield from reader


def _read_options(csv: Csv) -> pacsv.ReadOptions:
    # Arrow reports row numbers only with a single parser thread.
    return pacsv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES, column_names=csv.column_names)


def _parse_options(file: TableFile, csv: Csv, skip: Callable[[Any], str]) -> pacsv.ParseOptions:
    return pacsv.ParseOptions(delimiter=_delimiter(file, csv), newlines_in_values=True, invalid_row_handler=skip)


def _delimiter(file: TableFile, csv: Csv) -> str:
    return csv.delimiter or ("\t" if file.format == "tsv" else ",")


def _parse(chunk: _Chunk, start: int, data: Data, bad: BadRows) -> Rows:
    reasons: dict[int, str] = {}
    labels = _labels(chunk, data, reasons)
    numeric = [_numbers(chunk, column.column, data.missing, reasons) for column in data.numeric]
    for index in sorted(reasons):
        bad.add(chunk.file, chunk.row(index), reasons[index])
    good = np.delete(np.arange(chunk.batch.num_rows), list(reasons))
    kept = chunk.batch.take(pa.array(good)) if reasons else chunk.batch
    categorical = [_values(chunk.file, kept[column.column], column, data.missing) for column in data.categorical]
    return Rows(start + good, labels[good], categorical, [column[good] for column in numeric])


def _labels(chunk: _Chunk, data: Data, reasons: dict[int, str]) -> NDArray[np.float32]:
    label = data.label
    if label.numeric:
        return _number_labels(chunk, data, reasons)
    texts = _label_texts(chunk, data)
    if isinstance(label.classes, list):
        found = pc.index_in(texts, pa.array([text_of(value) for value in label.classes], pa.string()))
        valid, labels = _mask(found.is_valid()), pc.fill_null(found, 0).to_numpy(zero_copy_only=False)
        legal = "not one of the classes; correct it or list it in data.label.classes"
    else:
        yes = _is_one_of(texts, _YES if label.positive is None else [text_of(value) for value in label.positive])
        valid = yes | _is_one_of(texts, _NO) if label.positive is None else _mask(texts.is_valid())
        labels, legal = yes, "not 0 or 1; for other values, set data.label.positive"
    for index in np.flatnonzero(~valid):
        given = texts[index].as_py()
        why = "is missing" if given is None else f"is {given!r}, {legal}"
        reasons[int(index)] = f"the label {label.column} {why}"
    return labels.astype(np.float32)


def _label_texts(chunk: _Chunk, data: Data) -> pa.Array:
    """The label's values as text, null where missing. Numbers become text first: a file may have NaN for missing."""
    return _cleaned(_texts(chunk.batch[data.label.column]), data.missing)


def _number_labels(chunk: _Chunk, data: Data, reasons: dict[int, str]) -> NDArray[np.float32]:
    unusable: dict[int, str] = {}
    numbers = _numbers(chunk, data.label.column, data.missing, unusable)
    for index in np.flatnonzero(np.isnan(numbers)):
        unusable.setdefault(int(index), f"{data.label.column} is missing")
    for index in np.flatnonzero(np.abs(numbers) > np.finfo(np.float32).max):
        unusable.setdefault(int(index), f"{data.label.column} is {numbers[index]}, too large for float32")
    reasons.update({index: f"the label {reason}" for index, reason in unusable.items()})
    numbers[list(unusable)] = 0.0  # These rows are dropped.
    return numbers.astype(np.float32)


def _mask(values: pa.Array) -> NDArray[np.bool_]:
    return values.to_numpy(zero_copy_only=False)


def _is_one_of(texts: pa.Array, values: Sequence[str]) -> NDArray[np.bool_]:
    return pc.is_in(texts, pa.array(values, pa.string())).to_numpy(zero_copy_only=False)


def text_of(value: str | float) -> str:
    """A parameter's value as text, as Arrow formats it."""
    return pa.scalar(value).cast(pa.string()).as_py() if isinstance(value, float) else plain_text(value)


def _cleaned(column: pa.Array, missing: Sequence[str]) -> pa.Array:
    """Strings stripped, and null where they mean a missing value; other types unchanged."""
    if not _is_text(column.type):
        return column
    trimmed = pc.utf8_trim_whitespace(_texts(column))
    return pc.if_else(pc.is_in(trimmed, pa.array(missing, pa.string())), pa.scalar(None, pa.string()), trimmed)


def _texts(column: pa.Array) -> pa.Array:
    return column if column.type == pa.string() else column.cast(pa.string())


def _numbers(chunk: _Chunk, column: str, missing: Sequence[str], reasons: dict[int, str]) -> NDArray[np.float64]:
    given = _cleaned(chunk.batch[column], missing)
    if not (pa.types.is_string(given.type) or _is_number(given.type)):
        raise InputError(f"{chunk.file.name}: column {column!r} has type {given.type}; it must contain numbers")
    parsable = pc.match_substring_regex(given, _NUMBER) if pa.types.is_string(given.type) else given.is_valid()
    readable = pc.if_else(parsable, given, pa.scalar(None, given.type)).cast(pa.float64(), safe=False)
    numbers = readable.to_numpy(zero_copy_only=False).astype(np.float64)
    invalid = ~pc.or_kleene(parsable, given.is_null()).to_numpy(zero_copy_only=False)
    for index in np.flatnonzero(invalid | np.isinf(numbers)):
        reasons.setdefault(int(index), f"{column} is {given[index].as_py()!r}, not a finite number")
    return numbers


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_number(kind: pa.DataType) -> bool:
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_null)
    return any(test(kind) for test in tests)


def _values(file: TableFile, given: pa.Array, column: Categorical, missing: Sequence[str]) -> Values:
    if pa.types.is_nested(given.type) and not _is_list(given.type):
        raise InputError(f"{file.name}: column {column.column!r} has type {given.type}, not text, number or list")
    if column.separator is not None and not _is_list(given.type):
        given = pc.split_pattern(_texts(given), column.separator)
    if _is_list(given.type):
        return _first_values(pc.list_parent_indices(given), given.flatten(), column.max_values, missing)
    return _first_values(pa.array(np.arange(len(given))), given, 1, missing)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)  # Polars writes large lists.


def _first_values(parents: pa.Array, flat: pa.Array, maximum: int, missing: Sequence[str]) -> Values:
    texts = _cleaned(_texts(flat), missing)
    present = pc.fill_null(pc.not_equal(texts, ""), False)
    rows = parents.filter(present).to_numpy(zero_copy_only=False).astype(np.int64)
    positions = np.arange(len(rows)) - np.searchsorted(rows, rows)
    kept = positions < maximum
    return Values(texts.filter(present).filter(pa.array(kept)), rows[kept], positions[kept])
