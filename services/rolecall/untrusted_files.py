"""Safe access for unrestricted programs to files and folders that a job's code can have created."""

import os
import shutil
import stat
import subprocess
from contextlib import suppress
from pathlib import Path

_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
"""Non-blocking, because opening a pipe would otherwise wait for its other end."""


class NotRegular(OSError):
    """A regular file was expected, but the path is a pipe, folder, device or socket."""


def open_regular(path: str | Path, flags: int = os.O_RDONLY, *, dir_fd: int | None = None) -> int:
    """Open the regular file `path`, relative to `dir_fd` if given, without blocking. Returns a descriptor.

    Raises `NotRegular` for other types of files, and `OSError` (`ELOOP`) if `path` itself is a symbolic link. Links in
    parent folders are followed: if others can replace these as well, pass a single name and a `dir_fd`.
    """
    descriptor = os.open(path, flags | _FLAGS, 0o600, dir_fd=dir_fd)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegular(f"{path} is not a regular file")
    return descriptor


def delete_tree(path: Path) -> None:
    """Delete a folder of any depth, as far as the file system permits. Links are deleted, not followed."""
    with suppress(RecursionError):
        shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        # Python needs a descriptor and a frame for each level, and there can be thousands of levels.
        subprocess.run(["rm", "-rf", "--", path], check=False, stderr=subprocess.DEVNULL)  # noqa: S603, S607 - our own
