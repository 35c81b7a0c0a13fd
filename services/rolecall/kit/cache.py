"""What a node makes once from its input files and keeps: built under a lock, and put in place whole by a rename.

Nothing in a cache changes afterwards, so that all workers of a node may map it into memory. Whoever uses an entry holds
a shared lock on it until its process ends, and the kernel lets go of the lock even of a process that is killed. What
nobody holds may be evicted; a lock file's time of change is the last use of its entry.
"""

import contextlib
import fcntl
import logging
import os
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rolecall.settings import read_worker
from rolecall.untrusted_files import delete_tree, open_regular

_log = logging.getLogger(__name__)
_LOCK, _DRAFT = ".lock", ".draft"
_held: dict[Path, int] = {}
"""The locks of this process, which it never lets go of: it may map an entry as long as it lives."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a node's cache, or a draft that its builder left."""

    lock: Path
    used_at: float
    size: int


def build_once(folder: Path, key: str, build: Callable[[Path], None]) -> Path:
    """The entry `key` below `folder`; if it isn't there `build` fills an empty folder, and others who want it wait.

    `folder` is a workload's own in the node's cache. `key` names everything that the content depends on, e.g. by a
    hash. The entry stays as long as this process lives.
    """
    target = folder / key
    folder.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        evict(folder.parent, read_worker().cache_bytes)
    while not _hold(target):
        # Nobody waits to hold the lock alone: whoever has built the entry shares the lock as long as it lives, and it
        # may be waiting for this process.
        with _alone(_lock_of(target)) as alone:
            if alone and not target.exists():
                _build_in_place(target, build)
    return target


def evict(cache: Path, most_bytes: int) -> int:
    """Delete the least recently used entries below `cache` that nobody holds, down to `most_bytes`; 0 is no limit.

    Returns how many bytes that were.
    """
    found = sorted(_entries(cache), key=lambda entry: entry.used_at)
    excess = sum(entry.size for entry in found) - most_bytes
    evicted = 0
    for entry in found if most_bytes else ():
        if evicted >= excess:
            break
        if _evict(entry.lock):
            evicted += entry.size
            _log.info("evicted %s from the cache: %d bytes", entry.lock.stem, entry.size)
    return evicted


def _entries(cache: Path) -> Iterator[Entry]:
    """Whatever jobs have put there, no link is followed: the node evicts, and it is not confined."""
    folders = [folder for folder in cache.glob("*") if not folder.is_symlink()]
    for lock in (lock for folder in folders for lock in folder.glob(f"*{_LOCK}")):
        with contextlib.suppress(FileNotFoundError):  # another node's daemon may evict beside us
            found = lock.lstat()
            if stat.S_ISREG(found.st_mode):
                target = lock.with_suffix("")
                size = sum(_size(folder) for folder in (target, target.with_suffix(_DRAFT)))
                yield Entry(lock, found.st_mtime, size)


def _size(folder: Path) -> int:
    size, left = 0, [folder]
    while left:
        # Others may delete beside us, and a path may be too long to be looked at.
        with contextlib.suppress(OSError):
            path = left.pop()
            found = path.lstat()
            size += found.st_blocks * 512 if path != folder else 0
            if stat.S_ISDIR(found.st_mode):
                left += path.iterdir()
    return size


def _evict(lock: Path) -> bool:
    """Delete an entry with its lock; returns False if somebody holds it."""
    target = lock.with_suffix("")
    with _alone(lock) as alone:
        if alone:
            # Aside first: what is half deleted must never be taken for whole.
            aside = target.with_suffix(_DRAFT)
            delete_tree(aside)
            if target.exists():
                target.rename(aside)
                delete_tree(aside)
            lock.unlink()
    return alone


def _hold(target: Path) -> bool:
    """Hold the entry as long as this process lives and note the use; returns False if it is not there.

    Waits while another process builds or evicts it.
    """
    lock = _lock_of(target)
    if lock not in _held:
        descriptor = open_regular(lock, os.O_RDWR | os.O_CREAT)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if not (_is_at(descriptor, lock) and target.exists()):
            os.close(descriptor)
            return False
        _held[lock] = descriptor
    os.utime(lock)
    return True


@contextmanager
def _alone(path: Path) -> Generator[bool]:
    """Hold the lock file `path` alone; yields False if another process holds it, or has just evicted its entry."""
    with os.fdopen(open_regular(path, os.O_RDWR | os.O_CREAT), "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel lets go of it if this process dies
            alone = _is_at(lock.fileno(), path)
        except BlockingIOError:
            alone = False
        yield alone


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _lock_of(target: Path) -> Path:
    return target.with_suffix(_LOCK)


def _build_in_place(target: Path, build: Callable[[Path], None]) -> None:
    draft = target.with_suffix(_DRAFT)
    delete_tree(draft)  # left by a builder that died
    draft.mkdir()
    build(draft)
    os.rename(draft, target)
