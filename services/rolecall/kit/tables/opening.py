"""Opens a job's input files, without an import of what reads them before there is one."""

from typing import TYPE_CHECKING

from rolecall.kit.tables.files import find_tables
from rolecall.kit.tables.params import Data

if TYPE_CHECKING:
    from rolecall.kit.tables.source import TableSource


def open_table_source(data: Data, seed: int) -> "TableSource":
    """Find the input files; raises `InputError` if one does not exist."""
    # With it comes pyarrow, which is as large as all other packages but torch together. Generated rows don't need it:
    # the tests on a machine with a GPU do without (see docs/gpu.md), and the master, which reads no files, doesn't load
    # it.
    from rolecall.kit.tables.source import TableSource  # noqa: PLC0415 - see above

    return TableSource(data, seed, {split: find_tables(paths, data) for split, paths in data.sources.items()})
