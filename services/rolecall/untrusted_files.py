"""Files and folders that code of a job may have made, as a program uses them that is not confined."""

import os
import shutil
import stat
import subprocess
from contextlib import suppress
from pathlib import Path

_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
"""Non-blocking, because the open of a pipe would wait for its other end."""


class NotRegular(OSError):
    """There is a pipe, a folder, a device or a socket where a regular file should be."""


def open_regular(path: str | Path, flags: int = os.O_RDONLY, *, dir_fd: int | None = None) -> int:
    """A descriptor of the regular file `path`, without waiting; with `dir_fd`, relative to that folder.

    Raises `NotRegular` for anything else, and `OSError` (`ELOOP`) if `path` itself is a symbolic link. Links in folders
    on the way are followed: give one name and a `dir_fd` where others may replace those, too.
    """
    descriptor = os.open(path, flags | _FLAGS, 0o600, dir_fd=dir_fd)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegular(f"{path} is not a regular file")
    return descriptor


def delete_tree(path: Path) -> None:
    """Delete a folder as far as the file system lets us, however deep it is. Links are deleted, not followed."""
    with suppress(RecursionError):
        shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        # Python holds one descriptor and one frame for each level, and there may be thousands.
        subprocess.run(["rm", "-rf", "--", path], check=False, stderr=subprocess.DEVNULL)  # noqa: S603, S607
