"""The two kinds of blob stores: a folder, and every other store that fsspec supports. All functions block.

Paths are `<job>/<attempt>/<name>`.
"""

import errno
import os
import shutil
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol, cast

import fsspec  # pyright: ignore[reportMissingTypeStubs]
from fsspec.implementations.local import LocalFileSystem  # pyright: ignore[reportMissingTypeStubs]

from rolecall.untrusted_files import delete_tree

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
# Non-blocking, because the open of a pipe would wait for its writer.
_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_NO_FILE = {errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EISDIR}
"""The errors for a link, a path through something other than a folder, a socket, and a folder."""
_MAX_DEPTH = 128
"""The maximum number of nested folders of a blob."""


class BlobStore(Protocol):
    """Files by their paths. What is missing raises `FileNotFoundError`, except in `delete` and `remove`."""

    def size(self, path: str) -> int:
        """The file's size in bytes."""
        ...

    def open(self, path: str) -> IO[bytes]:
        """The file, opened for reading."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file. In a folder, a link itself is deleted, not its target."""

    def find(self, job: str) -> list[str]:
        """The paths of all files of a job. In a folder, everything except folders counts as a file."""
        ...

    def remove(self, job: str) -> None:
        """Delete all files of a job."""

    def is_populated(self) -> bool:
        """Return whether the store contains anything."""
        ...


def open_store(root: Path, url: str | None) -> BlobStore:
    """The store at `url`, or without one in the folder `root`. Opens no connection."""
    if url is None:
        return FolderStore(root)
    kind = fsspec.get_filesystem_class(url.partition("://")[0])  # pyright: ignore[reportUnknownMemberType]
    if issubclass(kind, LocalFileSystem):
        return FolderStore(Path(_resolve(url)[1]))
    return FsspecStore(url)


class FolderStore:
    """A folder of this machine.

    A worker that writes to its job's folder can replace any file or folder by a link or a pipe at any time. So each
    path is opened from the root one name at a time, without following links. Only regular files count as files.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def size(self, path: str) -> int:
        with self._folder_of(path) as (folder, name):
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        _check_regular(found, path)
        return found.st_size

    def open(self, path: str) -> IO[bytes]:
        with self._folder_of(path) as (folder, name):
            descriptor = os.open(name, _FILE, dir_fd=folder)
        try:
            _check_regular(os.fstat(descriptor), path)
        except BaseException:
            os.close(descriptor)
            raise
        return os.fdopen(descriptor, "rb")

    def delete(self, path: str) -> None:
        with suppress(FileNotFoundError), self._folder_of(path) as (folder, name):
            os.unlink(name, dir_fd=folder)

    def find(self, job: str) -> list[str]:
        found: list[str] = []
        folders = [job]
        while folders:
            path = folders.pop()
            with suppress(FileNotFoundError), self._folder(path) as folder:
                inner, others = _names_in(folder)
                folders += [f"{path}/{name}" for name in inner if path.count("/") < _MAX_DEPTH]
                found += [f"{path}/{name}" for name in others]
        return sorted(found)

    def remove(self, job: str) -> None:
        if not delete_tree(self._root / job):
            with suppress(FileNotFoundError):
                shutil.rmtree(self._root / job)  # Raises why something is left.

    def is_populated(self) -> bool:
        try:
            return any(self._root.iterdir())
        except FileNotFoundError:
            return False

    @contextmanager
    def _folder_of(self, path: str) -> Generator[tuple[int, str]]:
        """A descriptor of a file's folder, and the file's name in it."""
        whole = PurePosixPath(path)
        with self._folder(str(whole.parent)) as folder:
            yield folder, whole.name

    @contextmanager
    def _folder(self, path: str) -> Generator[int]:
        """A descriptor of a folder. In the block, `_NO_FILE` errors become `FileNotFoundError`."""
        try:
            folder = os.open(self._root, _FOLDER)
            try:
                for name in PurePosixPath(path).parts:
                    inner = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
                    os.close(folder)
                    folder = inner
                yield folder
            finally:
                os.close(folder)
        except OSError as error:
            if error.errno not in _NO_FILE:
                raise
            raise FileNotFoundError(errno.ENOENT, "no regular file, or not below a folder", path) from error


class FsspecStore:
    """A store that fsspec accesses by its URL, such as an object store.

    Other programs write and delete files as well, so no call uses listings that earlier calls have cached. Some file
    systems have a cache for each thread, so each call discards that of its own thread.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def size(self, path: str) -> int:
        system, root = self._fresh()
        return int(system.size(f"{root}/{path}"))

    def open(self, path: str) -> IO[bytes]:
        system, root = self._fresh()
        return cast(IO[bytes], system.open(f"{root}/{path}", "rb"))

    def delete(self, path: str) -> None:
        system, root = _resolve(self._url)  # It deletes by the name, without a listing.
        with suppress(FileNotFoundError):
            system.rm(f"{root}/{path}")

    def find(self, job: str) -> list[str]:
        system, root = self._fresh()
        return [path.removeprefix(f"{root}/") for path in system.find(f"{root}/{job}")]

    def remove(self, job: str) -> None:
        system, root = self._fresh()
        with suppress(FileNotFoundError):
            system.rm(f"{root}/{job}", recursive=True)

    def is_populated(self) -> bool:
        system, root = self._fresh()
        try:
            return bool(system.ls(root, detail=False))
        except FileNotFoundError:
            return False

    def _fresh(self) -> tuple[Any, str]:
        """The file system without cached listings, and the root in it."""
        system, root = _resolve(self._url)
        system.invalidate_cache()
        return system, root


def _resolve(url: str) -> tuple[Any, str]:
    system, path = cast(tuple[Any, str], fsspec.core.url_to_fs(url))  # pyright: ignore[reportUnknownMemberType]
    return system, path.rstrip("/")


def _check_regular(found: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise FileNotFoundError(errno.ENOENT, "no regular file", path)


def _names_in(folder: int) -> tuple[list[str], list[str]]:
    """The names of the folders in a folder, and the names of all other entries."""
    listed = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        with os.scandir(listed) as entries:
            kinds = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    finally:
        os.close(listed)
    return [name for name, is_folder in kinds if is_folder], [name for name, is_folder in kinds if not is_folder]
