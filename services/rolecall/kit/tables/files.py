"""The tables among a job's input files, and their formats. Torch-free."""

from dataclasses import dataclass

from rolecall.kit import files
from rolecall.kit.tables.params import Data
from rolecall.spec.errors import InputError

_SUFFIXES = {"csv": "csv", "tsv": "tsv", "tab": "tsv", "parquet": "parquet", "pq": "parquet"}


@dataclass(frozen=True, slots=True)
class File(files.File):
    """One input file that holds a table."""

    format: str
    """`csv`, `tsv` or `parquet`."""


def find(paths: list[str], data: Data) -> list[File]:
    """The tables that `paths` (paths, globs, URLs) stand for.

    Raises `InputError` for a path that is not there and for a file whose format neither `data` nor its name says.
    """
    return [File(file.url, file.identity, _format(file, data)) for file in files.find(paths)]


def _format(file: files.File, data: Data) -> str:
    form = data.format or _SUFFIXES.get(file.suffix)
    if form is None:
        raise InputError(
            f"the format of {file.url} can't be told from its name; set data.format to csv, tsv or parquet"
        )
    if form == "parquet" and file.gzipped:
        raise InputError(f"{file.url}: Parquet files are compressed inside; unpack it first")
    return form
