"""A worker's folder as its node uses it.

The sandbox keeps a worker from changing this folder. Where the kernel has none, a worker may put links, pipes and
folders in place of its files; they must neither lead the node to other files nor make it wait.
"""

import ctypes
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from rolecall.untrusted_files import delete_tree, open_regular

_LIBC = ctypes.CDLL(None, use_errno=True)
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
"""Modes of fallocate(2)."""


class Folder:
    """Files by name in one folder, which stays open until it is deleted: renames and links don't lead elsewhere."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether the folder was made, and not deleted since."""
        return self._descriptor is not None

    def make(self) -> None:
        """Make the folder, empty and closed to other users."""
        delete_tree(self.path)
        self.path.mkdir(parents=True, mode=0o700)
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def delete(self) -> None:
        """Delete the folder, and the two around it (the attempt's and the job's) where they are empty now."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        delete_tree(self.path)
        for parent in self.path.parents[:2]:
            try:
                parent.rmdir()
            except OSError:
                return

    def read(self, name: str, offset: int, most: int) -> bytes:
        """Up to `most` bytes of a file from `offset`; nothing while it does not exist."""
        if self._descriptor is None:
            return b""
        try:
            with self._opened(name, os.O_RDONLY) as file:
                return os.pread(file, most, offset)
        except FileNotFoundError:
            return b""

    def size(self, name: str) -> int:
        """A file's size in bytes; 0 while it does not exist."""
        found = self._look(name)
        return found.st_size if found is not None and stat.S_ISREG(found.st_mode) else 0

    def changed_ns(self, name: str) -> int | None:
        """When a file changed, in nanoseconds since 1970; None while it does not exist."""
        found = self._look(name)
        return None if found is None else found.st_mtime_ns

    def write(self, name: str, text: str) -> None:
        """Write a small file so that a worker that polls for it never sees a part."""
        partial = f"{name}.partial"
        with suppress(FileNotFoundError):
            os.unlink(partial, dir_fd=self._descriptor)
        with self._opened(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
            os.write(file, text.encode())
        os.rename(partial, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def free(self, name: str, begin: int, end: int) -> None:
        """Give the space of the bytes [begin, end) of a file back to the file system; the file keeps its size.

        Raises `OSError` where the file system can't.
        """
        with self._opened(name, os.O_WRONLY) as file:
            mode = _KEEP_SIZE | _PUNCH_HOLE
            if _LIBC.fallocate(file, mode, ctypes.c_int64(begin), ctypes.c_int64(end - begin)) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)

    @contextmanager
    def _opened(self, name: str, flags: int) -> Generator[int]:
        if self._descriptor is None:
            raise FileNotFoundError(f"{self.path} does not exist")
        descriptor = open_regular(name, flags, dir_fd=self._descriptor)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _look(self, name: str) -> os.stat_result | None:
        if self._descriptor is None:
            return None
        with suppress(FileNotFoundError):
            return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
        return None
