"""Finds and opens a job's input files, wherever fsspec reaches. Torch-free."""

from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import fsspec
from fsspec.core import url_to_fs

from rolecall.spec.errors import InputError
from rolecall.workloads.embedding_ddp.params import Data

_SUFFIXES = {"csv": "csv", "tsv": "tsv", "tab": "tsv", "parquet": "parquet", "pq": "parquet"}
_STAMPS = ("mtime", "LastModified", "last_modified", "updated", "ETag", "etag", "md5Hash")


@dataclass(frozen=True, slots=True)
class File:
    """One input file."""

    url: str
    """How messages name it."""
    format: str
    """`csv`, `tsv` or `parquet`."""
    gzipped: bool
    identity: tuple[str, ...]
    """Path, size and the times or tags that change when its content does."""

    def open(self) -> BinaryIO:
        """The file's bytes, unpacked."""
        try:
            return cast(BinaryIO, fsspec.open(self.url, "rb", compression="gzip" if self.gzipped else None).open())
        except OSError as error:
            raise InputError(f"{self.url} can't be read: {error.strerror or error}") from error


def find(paths: list[str], data: Data) -> list[File]:
    """The files that `paths` (paths, globs, URLs) stand for, globs in the order of names."""
    return [file for path in paths for file in _find_one(path, data)]


def _find_one(path: str, data: Data) -> list[File]:
    try:
        filesystem, bare = url_to_fs(path)
        names = sorted(filesystem.glob(bare)) if _is_glob(bare) else [bare]
        found = [(name, filesystem.info(name)) for name in names]
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist on this node; paths must be the same on every trainer's node"
        ) from None
    except (OSError, ValueError, ImportError) as error:
        raise InputError(f"{path} can't be read: {error}") from error
    files = [_describe(filesystem.unstrip_protocol(name), info, data) for name, info in found if _is_file(info)]
    if not files:
        kind = (
            "matches no file" if _is_glob(bare) else "is a folder; name its files, e.g. with a glob such as *.parquet"
        )
        raise InputError(f"{path} {kind}")
    return files


def _is_glob(path: str) -> bool:
    return any(sign in path for sign in "*?[")


def _is_file(info: dict[str, Any]) -> bool:
    return info["type"] == "file"


def _describe(url: str, info: dict[str, Any], data: Data) -> File:
    bare = url.removeprefix("file://")
    stem, gzipped = bare.removesuffix(".gz"), bare.endswith(".gz")
    form = data.format or _SUFFIXES.get(stem.rsplit(".", 1)[-1].lower())
    if form is None:
        raise InputError(f"the format of {bare} can't be told from its name; set data.format to csv, tsv or parquet")
    if form == "parquet" and gzipped:
        raise InputError(f"{bare}: Parquet files are compressed inside; unpack it first")
    stamps = tuple(str(info[stamp]) for stamp in _STAMPS if stamp in info)
    return File(bare, form, gzipped, (bare, str(info["size"]), *stamps))
