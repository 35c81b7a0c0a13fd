"""Encoded rows on the node's disk: memory-mapped, fixed-size records for random access."""

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rolecall.edge.logs import about
from rolecall.kit.cache import build_once
from rolecall.kit.data_order import held_out
from rolecall.kit.tables.columns import Columns
from rolecall.kit.tables.encoding import IdColumn, NumberColumn
from rolecall.kit.tables.files import TableFile, find_tables
from rolecall.kit.tables.fit import Fit
from rolecall.kit.tables.params import Data, Label
from rolecall.kit.tables.rows import BadRows, Rows, distinct_labels, read, text_of
from rolecall.spec.errors import InputError

_LOG = logging.getLogger(__name__)
_LAYOUT = 3
SPLITS: tuple[str, ...] = ("train", "validation", "test")


@dataclass(frozen=True, slots=True)
class EncodedTable:
    """The fitted columns of a table, and its encoded rows on disk."""

    folder: Path
    columns: Columns
    rows: dict[str, int]
    """Rows per split; `train` counts streamed rows too."""
    bad_rows: int
    """Rows that could not be parsed and were skipped."""
    classes: tuple[str, ...] = ()
    """The values of a label with classes, in the order of their indices; otherwise empty."""

    @property
    def fingerprint(self) -> str:
        """A hash of dictionaries, classes and row counts.

        Means and quantiles are not in it, because they may differ in the last bit between CPU types.
        """
        dictionaries = [(column.offset, column.size, column.values) for column in self.columns.ids]
        content = [dictionaries, self.classes, self.rows, self.bad_rows]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def records(self, split: str) -> NDArray[np.void]:
        """The split's records [rows], memory-mapped."""
        kind, rows = self.columns.record, self.rows[split]
        return np.memmap(self.folder / split, kind, "r", shape=(rows,)) if rows else np.empty(0, kind)


@dataclass(frozen=True, slots=True)
class TableSource:
    """A job's input files and their splits."""

    data: Data
    """Columns and format of the files."""
    seed: int
    """The seed of the hold-out hash."""
    files: dict[str, list[TableFile]]

    def with_classes(self, classes: Sequence[str]) -> Self:
        """The same source, whose label has these classes; unchanged without classes."""
        if not classes:
            return self
        label = self.data.label.model_copy(update={"classes": list(classes)})
        return replace(self, data=self.data.model_copy(update={"label": label}))

    def chunks(self, split: str, bad: BadRows) -> Iterator[Rows]:
        """The valid rows of a split in chunks, in the files' order."""
        share = self.data.validation
        if isinstance(share, list) or split == "test":
            yield from read(self.files.get(split, []), self.data, bad)
            return
        for rows in read(self.files["train"], self.data, bad):
            in_validation = held_out(rows.numbers, share, self.seed)
            yield rows.take(np.flatnonzero(in_validation == (split == "validation")))

    @property
    def key(self) -> str:
        """The cache key: a hash of everything that the content depends on."""
        identities = {split: [file.identity for file in files] for split, files in self.files.items()}
        content = [_LAYOUT, self.data.model_dump(mode="json"), self.seed, identities]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def open_table_source(data: Data, seed: int) -> TableSource:
    """Find the input files; raises `InputError` if one does not exist."""
    return TableSource(data, seed, {split: find_tables(paths, data) for split, paths in data.sources.items()})


def open_encoded_table(source: TableSource, folder: Path) -> EncodedTable:
    """The encoded rows of `source` in the cache `folder`, built if missing; concurrent callers wait."""
    return load_table(build_once(folder / "tables", source.key, lambda draft: _build(source, draft)))


def _build(source: TableSource, folder: Path) -> None:
    classes = _classes(source)
    source = source.with_classes(classes)
    bad = BadRows(source.data.max_bad_rows)
    columns, train_rows = _fit_columns(source, bad)
    cached = SPLITS[1:] if source.data.stream else SPLITS
    rows = {"train": train_rows}
    for split in cached:
        # Bad training rows were counted during the fit, together with the validation rows held out from them.
        counted = bad if split in source.files and split != "train" else BadRows(source.data.max_bad_rows)
        rows[split] = _write(folder / split, columns, source, split, counted)
    for report in bad.first:
        _LOG.warning("skipped a row: %s", report, extra=about("rows_skipped"))
    store_table(EncodedTable(folder, columns, rows, bad.count, classes))


def _classes(source: TableSource) -> tuple[str, ...]:
    match source.data.label.classes:
        case None:
            return ()
        case "auto":
            return tuple(distinct_labels(source.files["train"], source.data))
        case listed:
            return tuple(map(text_of, listed))


def _fit_columns(source: TableSource, bad: BadRows) -> tuple[Columns, int]:
    fit, count, least, most = Fit(source.data, source.seed), 0, np.inf, -np.inf
    for rows in source.chunks("train", bad):
        fit.add(rows)
        count += len(rows.labels)
        least, most = min(least, rows.labels.min(initial=np.inf)), max(most, rows.labels.max(initial=-np.inf))
    if not count:
        raise InputError("the training files contain no rows; check data.train")
    if least == most:
        _refuse_one_label(source.data.label, count, int(least))
    return fit.columns(), count


def _refuse_one_label(label: Label, count: int, index: int) -> None:
    """Raises `InputError` if all labels are of one class, which is no error for numbers."""
    if isinstance(label.classes, list):
        value = text_of(label.classes[index])
        raise InputError(
            f"all {count} training rows have the label {value!r}; check data.label: column {label.column!r} and its "
            "classes"
        )
    if not label.numeric:
        which = "positive" if index else "negative"
        raise InputError(
            f"all {count} training rows are {which}; check data.label: column {label.column!r} and its positive value"
        )


def _write(path: Path, columns: Columns, source: TableSource, split: str, bad: BadRows) -> int:
    count = 0
    with path.open("wb") as file:
        for rows in source.chunks(split, bad):
            columns.encode(rows, source.data).tofile(file)
            count += len(rows.labels)
    return count


def store_table(table: EncodedTable) -> None:
    """Write the description of `table` next to its records."""
    content = {"columns": asdict(table.columns), "rows": table.rows, "bad_rows": table.bad_rows}
    (table.folder / "about.json").write_text(json.dumps(content | {"classes": table.classes}))


def load_table(folder: Path) -> EncodedTable:
    """The table whose records and description are in `folder`."""
    about: dict[str, Any] = json.loads((folder / "about.json").read_text())
    ids = tuple(IdColumn(**column) for column in about["columns"]["ids"])
    numbers = tuple(NumberColumn(**column) for column in about["columns"]["numbers"])
    return EncodedTable(folder, Columns(ids, numbers), about["rows"], about["bad_rows"], tuple(about["classes"]))
