"""Input files that contain tables, and their formats. Torch-free."""

from dataclasses import dataclass

from rolecall.kit import files
from rolecall.kit.tables.params import Data
from rolecall.spec.errors import InputError

_SUFFIXES = {"csv": "csv", "tsv": "tsv", "tab": "tsv", "parquet": "parquet", "pq": "parquet"}


@dataclass(frozen=True, slots=True)
class TableFile(files.File):
    """An input file that contains a table."""

    format: str
    """`csv`, `tsv` or `parquet`."""


def find_tables(paths: list[str], data: Data) -> list[TableFile]:
    """The table files for `paths` (paths, globs, URLs).

    Raises `InputError` for a path that does not exist, and for a file of unknown format.
    """
    return [TableFile(file.url, file.identity, _format(file, data)) for file in files.find(paths)]


def _format(file: files.File, data: Data) -> str:
    form = data.format or _SUFFIXES.get(file.suffix)
    if form is None:
        raise InputError(f"{file.name} has no known file name extension; set data.format to csv, tsv or parquet")
    if form == "parquet" and file.gzipped:
        raise InputError(f"{file.name}: Parquet files are compressed internally; decompress it first")
    return form
