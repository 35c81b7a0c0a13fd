"""Safe access for unrestricted programs to files and folders that a job's code can have created."""

import errno
import os
import stat
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path

_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
"""Non-blocking, because opening a pipe would otherwise wait for its other end."""
_Listing = AbstractContextManager[Iterator[os.DirEntry[str]]]
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


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


def walk(path: Path, access: int, *, follow_parent: bool = True) -> Generator[tuple[str, int, os.stat_result]]:
    """Visit all files and folders below `path`, a folder after its content; `path` itself only if it is no folder.

    Yields a name, a descriptor of the folder that has it, and what the name is. Gives the user those of the rights
    `access` that the mode of a folder denies to its owner. Follows no links, keeps one descriptor at any depth, and has
    in memory only names of folders, not of files. Skips what can't be read. Raises `OSError` if `path.parent` can't be
    opened, or a process moves a folder meanwhile.
    Pass `follow_parent=False` if a job can replace `path.parent` by a link.
    """
    outer: list[tuple[os.stat_result, list[str], str, os.stat_result]] = []
    names, folder = [path.name], os.open(path.parent, _FOLDER | (0 if follow_parent else os.O_NOFOLLOW))
    try:
        while names or outer:
            if names:
                name = names.pop()
                try:
                    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
                except OSError:
                    continue
                if stat.S_ISDIR(found.st_mode):
                    try:
                        inner, listing = _enter(name, folder, access)
                    except OSError:
                        pass
                    else:
                        outer.append((os.fstat(folder), names, name, found))
                        os.close(folder)
                        folder, names = inner, list[str]()
                        yield from _visit(listing, folder, names)
                        continue
            else:
                above = os.open("..", _FOLDER, dir_fd=folder)
                os.close(folder)
                folder = above
                expected, names, name, found = outer.pop()
                if not os.path.samestat(os.fstat(folder), expected):
                    raise OSError(errno.ESTALE, "a process has moved a folder", name)
                if not outer:
                    return
            yield name, folder, found
    finally:
        os.close(folder)


def give_access(path: Path) -> None:
    """Give the user all rights to their folder `path`, whatever its mode. Does nothing if it is no such folder."""
    with suppress(OSError):
        os.close(_open_folder(str(path), None, stat.S_IRWXU))


def _open_folder(name: str, parent: int | None, access: int) -> int:
    """A descriptor of the folder `name`, no link, in `parent`, with the rights `access` if it is the user's."""
    folder = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    mode = stat.S_IMODE(os.fstat(folder).st_mode)
    if mode & access != access:
        with suppress(OSError):  # It is another user's.
            # Unlike fchmod, this works with a descriptor for which no right is needed.
            os.chmod(f"/proc/self/fd/{folder}", mode | access)
    return folder


def _visit(listing: _Listing, folder: int, folders: list[str]) -> Generator[tuple[str, int, os.stat_result]]:
    """The files of a `folder`, as `walk` yields them. Adds the names of its folders to `folders`."""
    with suppress(OSError), listing as entries:
        for entry in entries:
            with suppress(OSError):
                found = os.stat(entry.name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode):
                    folders.append(entry.name)
                else:
                    yield entry.name, folder, found


def _enter(name: str, parent: int, access: int) -> tuple[int, _Listing]:
    """A descriptor of the folder `name` in `parent`, and an iterator of what is in it."""
    folder = _open_folder(name, parent, access)
    try:
        listed = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        try:
            return folder, os.scandir(listed)  # It has a descriptor of its own.
        finally:
            os.close(listed)
    except OSError:
        os.close(folder)
        raise


def delete_tree(path: Path, *, follow_parent: bool = True) -> bool:
    """Delete a folder of any depth, a file or a link, as far as the file system permits. Returns whether it is gone.

    Links are deleted, not followed. For `follow_parent`, see `walk`.
    """
    with suppress(OSError):
        for name, folder, found in walk(path, stat.S_IRWXU, follow_parent=follow_parent):
            with suppress(OSError):
                (os.rmdir if stat.S_ISDIR(found.st_mode) else os.unlink)(name, dir_fd=folder)
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
