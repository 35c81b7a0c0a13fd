"""Opens files whose folder others may write: follows no link, takes regular files alone, and never waits."""

import os
import stat
from pathlib import Path

_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
"""Non-blocking, because the open of a pipe would wait for its other end."""


class NotRegular(OSError):
    """There is a pipe, a folder, a device or a socket where a regular file should be."""


def open_regular(path: str | Path, flags: int = os.O_RDONLY, *, dir_fd: int | None = None) -> int:
    """A descriptor of the regular file `path`; with `dir_fd`, relative to that folder.

    Raises `NotRegular` for anything else, and `OSError` (`ELOOP`) if `path` itself is a symbolic link. Links in folders
    on the way are followed: give one name and a `dir_fd` where others may replace those, too.
    """
    descriptor = os.open(path, flags | _FLAGS, 0o600, dir_fd=dir_fd)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegular(f"{path} is not a regular file")
    return descriptor
