# pyright: standard
"""A job's input files: local files in data roots, and fsspec URLs that the operator allows. Torch-free."""

import gzip
import os
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import fsspec
from fsspec.core import OpenFile, url_to_fs
from fsspec.implementations.local import LocalFileSystem

from rolecall.kit.data_access import DataAccess, read_access, start_of
from rolecall.spec.errors import InputError
from rolecall.spec.visible import one_line

_STAMPS = ("mtime", "LastModified", "last_modified", "updated", "ETag", "etag", "md5Hash")


@dataclass(frozen=True, slots=True)
class File:
    """One input file."""

    url: str
    identity: tuple[str, ...]
    """URL, size, and the timestamps or tags that change with the content."""

    @property
    def name(self) -> str:
        """The file in messages, which are one line: the reason of a failure is its first line."""
        return one_line(self.url)

    @property
    def gzipped(self) -> bool:
        return self.url.endswith(".gz")

    @property
    def suffix(self) -> str:
        """The file name extension before `.gz`, in lower case and without the dot."""
        return self.url.removesuffix(".gz").rsplit(".", 1)[-1].lower()

    def open(self) -> BinaryIO:
        """Open the file, decompressed; raises `InputError` if it can't be read or jobs may not read it."""
        access = read_access()
        plain = access.plain_path(self.url)
        try:
            if plain is None:
                opened = fsspec.open(self.url, "rb", compression="gzip" if self.gzipped else None)
                return cast(BinaryIO, cast(OpenFile, opened).open())
            compressed = access.open(plain)
        except OSError as error:
            raise InputError(f"{self.name} can't be read: {error.strerror or error}") from error
        return cast(BinaryIO, _GzipFile(compressed)) if self.gzipped else compressed


class _GzipFile(gzip.GzipFile):
    """Also closes the underlying file, which `gzip.GzipFile` does not."""

    def __init__(self, compressed: BinaryIO) -> None:
        super().__init__(fileobj=compressed, mode="rb")
        self._packed = compressed

    def close(self) -> None:
        super().close()
        self._packed.close()


def find(paths: list[str]) -> list[File]:
    """The files for `paths` (paths, globs, URLs); matches of a glob are sorted by name.

    Raises `InputError` for a path that does not exist, is a folder, matches nothing or is not allowed.
    """
    access = read_access()
    return [file for path in paths for file in _find_one(path, access)]


def _find_one(path: str, access: DataAccess) -> list[File]:
    plain = access.plain_path(path)
    try:
        filesystem, bare = _local(plain, access) if plain is not None else url_to_fs(path)
        names = sorted(filesystem.glob(bare)) if _is_glob(bare) else [bare]
        if plain is not None:
            for name in names:
                access.resolve(name, given=path)
        found = [(name, filesystem.info(name)) for name in names]
    except FileNotFoundError:
        start = start_of(path, ", which resolves relative paths against {}")
        raise InputError(
            f"{one_line(path)} does not exist on this node{start}; paths must be the same on every node that reads them"
        ) from None
    except (OSError, ValueError, ImportError) as error:
        raise InputError(f"{one_line(path)} can't be read: {error}") from error
    urls = {name: name if plain is not None else filesystem.unstrip_protocol(name) for name in names}
    files = [
        File(urls[name], (urls[name], str(info["size"]), *(str(info[stamp]) for stamp in _STAMPS if stamp in info)))
        for name, info in found
        if info["type"] == "file"
    ]
    if not files:
        kind = "is not a regular file"
        if _is_glob(bare):
            kind = "matches no file"
        elif any(info["type"] == "directory" for _, info in found):
            kind = "is a folder; name its files, for example by folder/*"
        raise InputError(f"{one_line(path)} {kind}")
    return files


def _local(plain: str, access: DataAccess) -> tuple[Any, str]:
    """The local file system and the absolute path. Checks a glob's root folder before it lists any folder."""
    path = root = os.path.join(os.getcwd(), plain)
    if _is_glob(path):
        first = min(path.index(sign) for sign in _GLOB_SIGNS if sign in path)
        root = path[: path.rindex("/", 0, first) + 1]
    access.resolve(root)
    return LocalFileSystem(), path


_GLOB_SIGNS = "*?["


def _is_glob(path: str) -> bool:
    return any(sign in path for sign in _GLOB_SIGNS)
