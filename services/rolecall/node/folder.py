"""The node's access to a worker's folder.

Without a sandbox, a worker can replace its files by links, pipes and folders. They must neither lead the node to other
files nor block it.
"""

import ctypes
import hashlib
import logging
import os
import stat
import tempfile
import uuid
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from rolecall.daemon_thread import call_aside
from rolecall.logs import about
from rolecall.spec.shared_memory import remove_files_of
from rolecall.untrusted_files import delete_tree, give_access, open_regular

_LIBC = ctypes.CDLL(None, use_errno=True)
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
"""Modes of fallocate(2)."""
_LOG = logging.getLogger(__name__)


class Folder:
    """The folder `<root>/<job>/<attempt>/<rank>` of a worker.

    It stays open until it is deleted, so that renames and links can't redirect the access.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    @property
    def is_open(self) -> bool:
        """True from `make` to `delete`."""
        return self._descriptor is not None

    def make(self) -> None:
        """Create the folder, empty and private."""
        self._delete_files()
        self.path.mkdir(parents=True, mode=0o700)
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def delete(self) -> None:
        """Delete the folder, and its two parents (of attempt and job) if they are empty."""
        self._delete_files()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        for parent in self.path.parents[:2]:
            try:
                parent.rmdir()
            except OSError:
                return

    def read(self, name: str, offset: int, max_bytes: int) -> bytes:
        """Up to `max_bytes` bytes of a file from `offset`; empty while it does not exist."""
        if self._descriptor is None:
            return b""
        try:
            with self._opened(name, os.O_RDONLY) as file:
                return os.pread(file, max_bytes, offset)
        except FileNotFoundError:
            return b""

    def size(self, name: str) -> int:
        """A file's size in bytes; 0 while it does not exist."""
        found = self._stat(name)
        return found.st_size if found is not None and stat.S_ISREG(found.st_mode) else 0

    def changed_ns(self, name: str) -> int | None:
        """The modification time of a file, in nanoseconds since 1970; None while it does not exist."""
        found = self._stat(name)
        return None if found is None else found.st_mtime_ns

    def write(self, name: str, text: str) -> None:
        """Write a small file atomically."""
        partial = f"{name}.partial"
        with suppress(FileNotFoundError):
            os.unlink(partial, dir_fd=self._descriptor)
        with self._opened(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
            os.write(file, text.encode())
        os.rename(partial, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def free(self, name: str, begin: int, end: int) -> None:
        """Free the space of the bytes [begin, end) of a file, which keeps its size.

        Raises `OSError` if the file system doesn't support this.
        """
        with self._opened(name, os.O_WRONLY) as file:
            mode = _KEEP_SIZE | _PUNCH_HOLE
            if _LIBC.fallocate(file, mode, ctypes.c_int64(begin), ctypes.c_int64(end - begin)) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)

    def _delete_files(self) -> None:
        """Free the name of the folder now, and delete the files in a thread."""
        if self._descriptor is not None:
            with suppress(OSError):  # The node may move a folder of its user only if it may write there.
                os.fchmod(self._descriptor, 0o700)
        aside = self.path.parents[2] / f".deleted-{uuid.uuid4().hex}"
        if _move(self.path, aside):
            # A job can leave a million files, for which neither the node's start nor its heartbeats may wait.
            call_aside(_delete, aside)

    @contextmanager
    def _opened(self, name: str, flags: int) -> Generator[int]:
        if self._descriptor is None:
            raise FileNotFoundError(f"{self.path} does not exist")
        descriptor = open_regular(name, flags, dir_fd=self._descriptor)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _stat(self, name: str) -> os.stat_result | None:
        if self._descriptor is None:
            return None
        with suppress(FileNotFoundError):
            return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
        return None


def delete_work(work: Path) -> None:
    """Free the name of the folder of an earlier daemon's workers, who died with it, and delete their files in a thread,
    also those in shared memory.

    Continues deletions that the end of a daemon has interrupted.
    """
    left = work.with_name(".deleted")
    if left.is_symlink() or not left.is_dir():
        delete_tree(left)  # A job without a sandbox can have put anything there.
    left.mkdir(exist_ok=True)
    give_access(work)
    moved = left / uuid.uuid4().hex
    _move(work, moved)
    call_aside(_delete_left, left, moved)


def _delete_left(left: Path, work: Path) -> None:
    # Only here, where the names are those of the node: in a worker's folder, a job can choose any.
    remove_files_of((path.parts[-3], path.parts[-2], path.parts[-1]) for path in work.glob("*/*/*"))
    _delete(left)


def _move(path: Path, aside: Path) -> bool:
    """Move a folder. Deletes one that can't be moved, and returns False if none is left to delete."""
    try:
        path.rename(aside)
    except FileNotFoundError:
        return False
    except OSError:  # A job without a sandbox can forbid to move it.
        delete_tree(path)
        return False
    return True


def _delete(path: Path) -> None:
    if not delete_tree(path):
        _LOG.warning("the files of workers below %s can't be deleted", path, extra=about("worker_files_left"))


@contextmanager
def short_name(folder: Path) -> Generator[Path]:
    """A temporary link to `folder` for the duration of the context, or `folder` itself if no link can be created.

    The workers' temporary files are below it, such as the Unix sockets of `multiprocessing`, whose names are limited to
    107 bytes.
    """
    digest = hashlib.sha256(str(folder.absolute()).encode()).hexdigest()
    link = Path(tempfile.gettempdir(), f"rolecall-{digest[:8]}")
    try:
        link.unlink(missing_ok=True)
        link.symlink_to(folder.absolute())
    except OSError:  # The link belongs to another user, or the folder is not writable.
        yield folder
        return
    try:
        yield link
    finally:
        with suppress(OSError):
            link.unlink()
