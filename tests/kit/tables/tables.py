"""Small tables, and parameters that describe them."""

from pathlib import Path
from typing import Any

from rolecall.kit.tables.files import find_tables
from rolecall.kit.tables.params import Data
from rolecall.kit.tables.rows import BadRows, Rows, read

ROWS = ("1,a,1", "0,b,2", "1,a,3", "0,,4", "1,c,", "0,b,6")


def described(train: Path | str | list[str], **others: Any) -> dict[str, Any]:
    """Parameters of a table with a label `y`, a categorical column `c` and a numeric column `n`."""
    given = {"train": train if isinstance(train, list) else str(train), "label": "y", "categorical": ["c"]}
    return given | {"numeric": ["n"], "validation": 0.0} | others


def table(train: Path | str | list[str], **others: Any) -> Data:
    return Data.model_validate(described(train, **others))


def csv(path: Path, *rows: str, header: str = "y,c,n") -> Path:
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def read_all(given: Data) -> tuple[list[Rows], BadRows]:
    bad = BadRows(given.max_bad_rows)
    return list(read(find_tables(given.train, given), given, bad)), bad
