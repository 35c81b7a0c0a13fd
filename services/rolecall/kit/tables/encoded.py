"""Encoded rows on the node's disk: memory-mapped, fixed-size records for random access."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rolecall.kit.tables.columns import Columns
from rolecall.kit.tables.encoding import IdColumn, NumberColumn

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
    digest: str = ""
    """A hash of the rows on disk; empty for generated rows, which follow from the parameters."""

    @property
    def fingerprint(self) -> str:
        """A hash of dictionaries, classes, row counts and the rows on disk, thus not of streamed rows.

        Means and quantiles are not in it, because they may differ in the last bit between CPU types.
        """
        dictionaries = [(column.offset, column.size, column.values) for column in self.columns.ids]
        content = [dictionaries, self.classes, self.rows, self.bad_rows, self.digest]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def records(self, split: str) -> NDArray[np.void]:
        """The split's records [rows], memory-mapped."""
        kind, rows = self.columns.record, self.rows[split]
        return np.memmap(self.folder / split, kind, "r", shape=(rows,)) if rows else np.empty(0, kind)


def store_table(table: EncodedTable) -> None:
    """Write the description of `table` next to its records."""
    content = {"columns": asdict(table.columns), "rows": table.rows, "bad_rows": table.bad_rows}
    content |= {"classes": table.classes, "digest": table.digest}
    (table.folder / "about.json").write_text(json.dumps(content))


def load_table(folder: Path) -> EncodedTable:
    """The table whose records and description are in `folder`."""
    about: dict[str, Any] = json.loads((folder / "about.json").read_text())
    ids = tuple(IdColumn(**column) for column in about["columns"]["ids"])
    numbers = tuple(NumberColumn(**column) for column in about["columns"]["numbers"])
    columns, classes = Columns(ids, numbers), tuple(about["classes"])
    return EncodedTable(folder, columns, about["rows"], about["bad_rows"], classes, about["digest"])
