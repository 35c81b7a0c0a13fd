"""Finds and opens a job's input files, wherever fsspec reaches. Torch-free."""

from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import fsspec
from fsspec.core import url_to_fs

from rolecall.spec.errors import InputError

_STAMPS = ("mtime", "LastModified", "last_modified", "updated", "ETag", "etag", "md5Hash")


@dataclass(frozen=True, slots=True)
class File:
    """One input file."""

    url: str
    """How messages name it."""
    identity: tuple[str, ...]
    """Path, size and the times or tags that change when its content does."""

    @property
    def gzipped(self) -> bool:
        """Whether its name says that gzip packed it."""
        return self.url.endswith(".gz")

    @property
    def suffix(self) -> str:
        """What its name ends with before a `.gz`, in lower case and without the dot."""
        return self.url.removesuffix(".gz").rsplit(".", 1)[-1].lower()

    def open(self) -> BinaryIO:
        """The file's bytes, unpacked; raises `InputError` if they can't be had."""
        try:
            return cast(BinaryIO, fsspec.open(self.url, "rb", compression="gzip" if self.gzipped else None).open())
        except OSError as error:
            raise InputError(f"{self.url} can't be read: {error.strerror or error}") from error


def find(paths: list[str]) -> list[File]:
    """The files that `paths` (paths, globs, URLs) stand for, globs in the order of names.

    Raises `InputError` for a path that is not there, is a folder or matches nothing.
    """
    return [file for path in paths for file in _find_one(path)]


def _find_one(path: str) -> list[File]:
    try:
        filesystem, bare = url_to_fs(path)
        names = sorted(filesystem.glob(bare)) if _is_glob(bare) else [bare]
        found = [(name, filesystem.info(name)) for name in names]
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist on this node; paths must be the same on every node that reads them"
        ) from None
    except (OSError, ValueError, ImportError) as error:
        raise InputError(f"{path} can't be read: {error}") from error
    files = [_describe(filesystem.unstrip_protocol(name), info) for name, info in found if info["type"] == "file"]
    if not files:
        kind = "matches no file" if _is_glob(bare) else "is a folder; name its files, e.g. with a glob such as folder/*"
        raise InputError(f"{path} {kind}")
    return files


def _is_glob(path: str) -> bool:
    return any(sign in path for sign in "*?[")


def _describe(url: str, info: dict[str, Any]) -> File:
    bare = url.removeprefix("file://")
    return File(bare, (bare, str(info["size"]), *(str(info[stamp]) for stamp in _STAMPS if stamp in info)))
