"""A job's input files, read and encoded: once into a table on the node's disk, or in every epoch."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from rolecall.kit.cache import build_once
from rolecall.kit.data_order import held_out
from rolecall.kit.tables.columns import Columns
from rolecall.kit.tables.encoded import SPLITS, EncodedTable, load_table, store_table
from rolecall.kit.tables.files import TableFile
from rolecall.kit.tables.fit import Fit
from rolecall.kit.tables.params import Data, Label
from rolecall.kit.tables.records import encode
from rolecall.kit.tables.rows import BadRows, Rows, distinct_labels, read, require_columns, text_of
from rolecall.logs import about
from rolecall.spec.errors import InputError

_LOG = logging.getLogger(__name__)
_LAYOUT = 4


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

    def require_columns(self) -> None:
        """Raises `InputError` unless all files are readable, and have the columns and a usable label."""
        for file in (file for files in self.files.values() for file in files):
            require_columns(file, self.data)

    def encoded_table(self, folder: Path) -> EncodedTable:
        """The encoded rows in the cache `folder`, built if missing; concurrent callers wait."""
        return load_table(build_once(folder / "tables", self.key, lambda draft: _build(self, draft)))

    def train_records(self, columns: Columns) -> Iterator[NDArray[np.void]]:
        """The training rows as records in chunks, in the files' order. Each call reads the files."""
        chunks = self.chunks("train", BadRows(self.data.max_bad_rows))
        return (encode(columns, rows, self.data) for rows in chunks)

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


def _build(source: TableSource, folder: Path) -> None:
    classes = _classes(source)
    source = source.with_classes(classes)
    bad = BadRows(source.data.max_bad_rows)
    columns, train_rows = _fit_columns(source, bad)
    cached = SPLITS[1:] if source.data.stream else SPLITS
    rows = {"train": train_rows}
    digest = hashlib.sha256()
    for split in cached:
        # Bad training rows were counted during the fit, together with the validation rows held out from them.
        counted = bad if split in source.files and split != "train" else BadRows(source.data.max_bad_rows)
        rows[split] = _write(folder / split, columns, source.data, source.chunks(split, counted), digest.update)
    for report in bad.first:
        _LOG.warning("skipped a row: %s", report, extra=about("rows_skipped"))
    store_table(EncodedTable(folder, columns, rows, bad.count, classes, digest.hexdigest()))


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


def _write(path: Path, columns: Columns, data: Data, chunks: Iterable[Rows], update: Callable[[bytes], None]) -> int:
    """Write the rows as records and return their number.

    A hash's `update` gets ids, labels and numbers as read, because means and quantiles, which would be in the encoded
    numbers, may differ in the last bit between CPU types. That takes about 2 s per GB, once per entry, and far less
    time than to parse the rows.
    """
    width = sum(column.width for column in columns.ids if column.kind != "buckets")
    count = 0
    with path.open("wb") as file:
        for rows in chunks:
            records = encode(columns, rows, data)
            records.tofile(file)
            # Row by row, so that the hash doesn't depend on the chunks. A float64 holds every id exactly.
            exact = np.column_stack([records["ids"][:, :width], rows.labels, *rows.numeric]).astype(np.float64)
            update(exact.tobytes())
            count += len(records)
    return count
