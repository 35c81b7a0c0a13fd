"""Encoded rows on the node's disk: memory-mapped, fixed-size records for random access."""

import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rolecall.edge.logs import about
from rolecall.kit.cache import build_once
from rolecall.kit.data_order import held_out
from rolecall.kit.tables.columns import Columns
from rolecall.kit.tables.encoding import IdColumn, NumberColumn
from rolecall.kit.tables.files import TableFile, find_tables
from rolecall.kit.tables.fit import Fit
from rolecall.kit.tables.params import Data
from rolecall.kit.tables.rows import BadRows, Rows, read
from rolecall.spec.errors import InputError

_LOG = logging.getLogger(__name__)
_LAYOUT = 1
_SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, slots=True)
class EncodedTable:
    """The fitted columns of a table, and its encoded rows on disk."""

    folder: Path
    columns: Columns
    rows: dict[str, int]
    """Rows per split; `train` counts streamed rows too."""
    bad_rows: int
    """Rows that could not be parsed and were skipped."""

    @property
    def fingerprint(self) -> str:
        """A hash of dictionaries and row counts. Means and quantiles may differ in the last bit between CPU types."""
        dictionaries = [(column.offset, column.size, column.values) for column in self.columns.ids]
        return hashlib.sha256(json.dumps([dictionaries, self.rows, self.bad_rows]).encode()).hexdigest()

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
    return _load(build_once(folder / "tables", source.key, lambda draft: _build(source, draft)))


def _build(source: TableSource, folder: Path) -> None:
    bad = BadRows(source.data.max_bad_rows)
    columns, train_rows = _fit_columns(source, bad)
    cached = _SPLITS[1:] if source.data.stream else _SPLITS
    rows = {"train": train_rows}
    for split in cached:
        # Bad training rows were counted during the fit, together with the validation rows held out from them.
        counted = bad if split in source.files and split != "train" else BadRows(source.data.max_bad_rows)
        rows[split] = _write(folder / split, columns, source, split, counted)
    for report in bad.first:
        _LOG.warning("skipped a row: %s", report, extra=about("rows_skipped"))
    description = {"columns": asdict(columns), "rows": rows, "bad_rows": bad.count}
    (folder / "about.json").write_text(json.dumps(description))


def _fit_columns(source: TableSource, bad: BadRows) -> tuple[Columns, int]:
    fit, count, positive = Fit(source.data, source.seed), 0, 0.0
    for rows in source.chunks("train", bad):
        fit.add(rows)
        count += len(rows.labels)
        positive += float(rows.labels.sum())
    if not count:
        raise InputError("the training files contain no rows; check data.train")
    if positive in (0, count):
        which, label = "positive" if positive else "negative", source.data.label
        raise InputError(
            f"all {count} training rows are {which}; check data.label: column {label.column!r} and its positive value"
        )
    return fit.columns(), count


def _write(path: Path, columns: Columns, source: TableSource, split: str, bad: BadRows) -> int:
    count = 0
    with path.open("wb") as file:
        for rows in source.chunks(split, bad):
            columns.encode(rows, source.data).tofile(file)
            count += len(rows.labels)
    return count


def _load(folder: Path) -> EncodedTable:
    about: dict[str, Any] = json.loads((folder / "about.json").read_text())
    ids = tuple(IdColumn(**column) for column in about["columns"]["ids"])
    numbers = tuple(NumberColumn(**column) for column in about["columns"]["numbers"])
    return EncodedTable(folder, Columns(ids, numbers), about["rows"], about["bad_rows"])
