"""The two kinds of blob stores: a folder, and whatever else fsspec has a library for. All of it blocks.

Paths are `<job>/<attempt>/<name>`, names of job folders `<job>`.
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

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
# Non-blocking, because the open of a pipe would wait for its writer.
_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_NO_FILE = {errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EISDIR}
"""What the kernel says of a link, of a path through something that is no folder, of a socket, and of a folder."""
_MAX_DEPTH = 128
"""No blob lies in more folders than that."""


class BlobStore(Protocol):
    """Files by their paths."""

    def size(self, path: str) -> int:
        """The file's size in bytes. Raises `FileNotFoundError` when there is no such file."""
        ...

    def open(self, path: str) -> IO[bytes]:
        """The file, to be read. Raises `FileNotFoundError` when there is no such file."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file; nothing happens if it is gone already."""
        ...

    def find(self, job: str) -> list[str]:
        """The paths of all files of a job."""
        ...

    def remove(self, job: str) -> None:
        """Delete all files of a job; nothing happens if there are none."""
        ...

    def is_populated(self) -> bool:
        """Whether there is anything at all."""
        ...

    def refresh(self) -> None:
        """Forget what is remembered of earlier calls: others write and delete there, too."""
        ...


def open_store(root: Path, url: str | None) -> BlobStore:
    """The store below `url`, or in the folder `root` without one. Calls nobody."""
    if url is None:
        return FolderStore(root)
    kind = fsspec.get_filesystem_class(url.partition("://")[0])  # pyright: ignore[reportUnknownMemberType]
    if issubclass(kind, LocalFileSystem):
        return FolderStore(Path(_resolve(url)[1]))
    return FsspecStore(url)


class FolderStore:
    """A folder of this machine.

    A worker that writes to its job's folder may put a link or a pipe in the place of any file or folder, at any moment.
    So each path is walked from the root one name at a time, no link is followed, and what is no regular file counts as
    no file.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def size(self, path: str) -> int:
        """See `BlobStore`."""
        with self._folder_of(path) as (folder, name):
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        _check_regular(found, path)
        return found.st_size

    def open(self, path: str) -> IO[bytes]:
        """See `BlobStore`."""
        with self._folder_of(path) as (folder, name):
            descriptor = os.open(name, _FILE, dir_fd=folder)
        try:
            _check_regular(os.fstat(descriptor), path)
        except BaseException:
            os.close(descriptor)
            raise
        return os.fdopen(descriptor, "rb")

    def delete(self, path: str) -> None:
        """See `BlobStore`. Of a link, it deletes the link."""
        with suppress(FileNotFoundError), self._folder_of(path) as (folder, name):
            os.unlink(name, dir_fd=folder)

    def find(self, job: str) -> list[str]:
        """See `BlobStore`; with them, all else that is no folder."""
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
        """See `BlobStore`."""
        with suppress(FileNotFoundError), self._folder_of(job) as (folder, name):
            shutil.rmtree(name, dir_fd=folder)

    def is_populated(self) -> bool:
        """See `BlobStore`."""
        try:
            return any(self._root.iterdir())
        except FileNotFoundError:
            return False

    def refresh(self) -> None:
        """See `BlobStore`. The kernel remembers nothing that is not so."""

    @contextmanager
    def _folder_of(self, path: str) -> Generator[tuple[int, str]]:
        """A descriptor of the folder that a file lies in, and the file's name there."""
        whole = PurePosixPath(path)
        with self._folder(str(whole.parent)) as folder:
            yield folder, whole.name

    @contextmanager
    def _folder(self, path: str) -> Generator[int]:
        """A descriptor of a folder. Within the block, what is no file or no folder is not found."""
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
    """Whatever fsspec calls by its URL, like an object store."""

    def __init__(self, url: str) -> None:
        self._url = url

    def size(self, path: str) -> int:
        """See `BlobStore`."""
        system, root = _resolve(self._url)
        return int(system.size(f"{root}/{path}"))

    def open(self, path: str) -> IO[bytes]:
        """See `BlobStore`."""
        system, root = _resolve(self._url)
        return cast(IO[bytes], system.open(f"{root}/{path}", "rb"))

    def delete(self, path: str) -> None:
        """See `BlobStore`."""
        system, root = _resolve(self._url)
        with suppress(FileNotFoundError):
            system.rm(f"{root}/{path}")

    def find(self, job: str) -> list[str]:
        """See `BlobStore`."""
        self.refresh()
        system, root = _resolve(self._url)
        return [path.removeprefix(f"{root}/") for path in system.find(f"{root}/{job}")]

    def remove(self, job: str) -> None:
        """See `BlobStore`."""
        self.refresh()
        system, root = _resolve(self._url)
        with suppress(FileNotFoundError):
            system.rm(f"{root}/{job}", recursive=True)

    def is_populated(self) -> bool:
        """See `BlobStore`."""
        self.refresh()
        system, root = _resolve(self._url)
        try:
            return bool(system.ls(root, detail=False))
        except FileNotFoundError:
            return False

    def refresh(self) -> None:
        """See `BlobStore`. fsspec remembers listings."""
        _resolve(self._url)[0].invalidate_cache()


def _resolve(url: str) -> tuple[Any, str]:
    system, path = cast(tuple[Any, str], fsspec.core.url_to_fs(url))  # pyright: ignore[reportUnknownMemberType]
    return system, path.rstrip("/")


def _check_regular(found: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise FileNotFoundError(errno.ENOENT, "no regular file", path)


def _names_in(folder: int) -> tuple[list[str], list[str]]:
    """The names of the folders in a folder, and those of all else."""
    listed = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        with os.scandir(listed) as entries:
            kinds = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    finally:
        os.close(listed)
    return [name for name, is_folder in kinds if is_folder], [name for name, is_folder in kinds if not is_folder]
