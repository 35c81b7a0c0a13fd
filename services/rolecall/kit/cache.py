"""A node's caches of data derived from input files. Entries are built under a lock and published by an atomic rename.

Each owner of jobs has a cache of their own. Jobs can write there, and must not change the input of other owners' jobs.

Published entries are immutable, so all workers of an owner can map them into memory. A process that uses an entry holds
a shared lock on it until the process ends; the kernel releases the lock even if the process is killed. Entries without
a lock holder may be evicted; the mtime of the lock file is the last use of its entry.
"""

import contextlib
import fcntl
import logging
import os
import shutil
import stat
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rolecall.logs import about
from rolecall.settings.worker import read_worker
from rolecall.spec.errors import InputError
from rolecall.untrusted_files import delete_tree, give_access, open_regular, walk

_LOG = logging.getLogger(__name__)
_LOCK, _DRAFT = ".lock", ".draft"
_LIST = stat.S_IRUSR | stat.S_IXUSR
_MAX_NAME_BYTES = 255
_MIN_BYTES = 4096
"""The least that a file or folder counts: an empty one takes no block, but an inode and time of each eviction."""
_EMPTY_FOLDER_S = 60
"""Age at which an empty folder of a workload may go. A younger one can be that of a build that starts."""
_RESERVE_SHARE, _MAX_RESERVE_BYTES = 0.05, 2 << 30
_held_locks: dict[Path, int] = {}
"""File descriptors of this process's locks; never released, because the process may map an entry until it ends."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A cache entry, a draft that a failed build left, or a file or folder that is neither."""

    folder: Path
    name: str
    """That of the lock of an entry or a draft; anything else has its own. A path for each would take much memory."""
    used_at: float
    size: int
    is_stray: bool = False
    is_empty: bool = False
    """True for the folder of a workload without entries."""

    @property
    def path(self) -> Path:
        return self.folder / self.name


def make_owner_folder(caches: Path, owner: str, job: str) -> Path:
    """Create the folder of an owner's jobs in a node's `caches`; the job's own if the owner is not known.

    Raises `NotADirectoryError` for a link, which only a job without a sandbox can have created.
    """
    folder = caches / (owner or f"_{job}")  # No owner's name begins with an underscore.
    folder.mkdir(parents=True, exist_ok=True)
    if folder.is_symlink():
        raise NotADirectoryError(f"{folder} is a link, not the cache of {owner or job}; delete it")
    return folder


def build_once(folder: Path, key: str, build: Callable[[Path], None]) -> Path:
    """The entry `key` in `folder`. If it is missing, `build` fills an empty folder while other processes wait.

    `folder` is the workload's folder in the owner's cache. `key` identifies everything that the content depends on,
    for example by a hash. The entry is not evicted before this process ends. Raises `ValueError` for a key with a dot,
    which separates keys from the endings of locks and drafts.
    """
    if "." in key:
        raise ValueError(f"the key {key!r} of a cache entry has a dot; use other characters")
    target = folder / key
    if not target.exists():
        evict(folder.parent, read_worker().cache_bytes)
    folder.mkdir(parents=True, exist_ok=True)  # The eviction deletes empty folders.
    while not _acquire_shared(target):
        # Never block on the exclusive lock: the process that built the entry holds the shared lock until it ends, and
        # it may be waiting for this process.
        with _exclusive(target.with_suffix(_LOCK)) as exclusive:
            if exclusive and not target.exists():
                _build_atomically(target, build)
    return target


def require_space(folder: Path, size: int) -> None:
    """Raises `InputError` if `size` more bytes in `folder` leave too little of its disk, which the node and all of its
    jobs share: 5 %, at most 2 GiB.

    For builds whose size follows from a job's parameters, not from existing files.
    """
    disk = shutil.disk_usage(folder)
    room = disk.free - min(round(disk.total * _RESERVE_SHARE), _MAX_RESERVE_BYTES)
    if size > room:
        raise InputError(
            f"the generated data takes {size} bytes, but the cache of this node has room for {max(0, room)}; generate "
            "less, or free some disk space"
        )


def evict(cache: Path, max_bytes: int, clock: Callable[[], float] = time.time) -> int:
    """Delete the least recently used unlocked entries of an owner's `cache`, down to `max_bytes`; 0 means no limit.

    Returns the number of bytes freed. Raises no `OSError`, because a job can write in the cache, and the eviction is
    part of other jobs.
    """
    return _evict(cache, [cache], max_bytes, clock())


def evict_all(caches: Path, max_bytes: int, clock: Callable[[], float] = time.time) -> int:
    """Do the same for the caches of all owners of a node together.

    The owner with the most bytes loses entries first, and no owner loses any below an equal share of `max_bytes`.
    Otherwise, an owner could displace the entries of all others, for example by entries that stay in use.
    """
    return _evict(caches, [folder for folder in caches.glob("*") if not folder.is_symlink()], max_bytes, clock())


def delete_shared_cache(cache: Path) -> None:
    """Delete the entries of the cache that earlier releases had for all owners, in which any job could write.

    All other files stay, because this release has nothing there and users may have.
    """
    for lock in cache.glob(f"*/*{_LOCK}"):
        with contextlib.suppress(OSError):
            if _is_legal(lock) and stat.S_ISREG(lock.lstat().st_mode) and not lock.parent.is_symlink():
                _delete_unused(lock)


def _evict(place: Path, owners: list[Path], max_bytes: int, now: float) -> int:
    if not max_bytes:
        return 0
    failures: list[OSError] = []
    held: dict[Path, int] = {}
    for owner in owners:
        try:
            held[owner] = sum(entry.size for entry in _entries(owner, now))
        except OSError as error:
            failures.append(error)
    entries: dict[Path, deque[Entry]] = {}
    if sum(held.values()) > max_bytes:  # Only then keep all entries in memory.
        for owner in held:
            try:
                entries[owner] = deque(sorted(_entries(owner, now), key=lambda entry: entry.used_at))
            except OSError as error:
                failures.append(error)
            else:
                held[owner] = sum(entry.size for entry in entries[owner])
    share = max_bytes / max(1, sum(size > 0 for size in held.values()))
    excess, evicted = sum(held.values()) - max_bytes, 0
    while evicted < excess and (over := [owner for owner in entries if entries[owner] and held[owner] > share]):
        owner = max(over, key=lambda owner: held[owner])
        entry = entries[owner].popleft()
        try:
            if not _delete_entry(entry):
                continue
        except OSError as error:
            failures.append(error)
            continue
        evicted += entry.size
        held[owner] -= entry.size
        extra = about("cache_evicted")
        _LOG.info("evicted %s from the cache: %d bytes", entry.path.stem, entry.size, extra=extra)
    if failures:
        text = "the eviction from the cache %s had errors (%d), first: %s"
        _LOG.warning(text, place, len(failures), failures[0], extra=about("eviction_failed"))
    return evicted


def _entries(cache: Path, now: float) -> Iterator[Entry]:
    """All entries of an owner. Follows no links that a job may have created: the evicting node is not sandboxed.

    An entry without a lock file, which a job has deleted or never made, counts as used when it last changed; its
    eviction makes the lock. What is not made by `build_once` counts alike, because it fills the disk as well. A job can
    set any time of use, so a time after `now` counts as `now`.
    """
    for name in _names(cache):
        folder = cache / name
        with contextlib.suppress(OSError):  # another node's daemon may evict concurrently
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode):
                yield Entry(cache, name, min(found.st_mtime, now), _disk_usage(folder), is_stray=True)
                continue
            is_empty = True
            for below in _names(folder):
                is_empty = False
                with contextlib.suppress(OSError):
                    yield from _entry(folder, below, now)
            if is_empty and found.st_ctime < now - _EMPTY_FOLDER_S:
                yield Entry(cache, name, min(found.st_mtime, now), _MIN_BYTES, is_empty=True)


def _names(folder: Path) -> Iterator[str]:
    """The names in a folder, one at a time; none if it is a link, missing or of another user."""
    give_access(folder)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            with os.scandir(descriptor) as found:
                for entry in found:
                    yield entry.name
        finally:
            os.close(descriptor)


def _entry(folder: Path, name: str, now: float) -> Iterator[Entry]:
    """The entry that has the file or folder `name`; none for the second and third name of an entry."""
    path = folder / name
    lock = path.with_suffix(_LOCK)
    if path.suffix not in {"", _LOCK, _DRAFT} or not _is_legal(lock):
        yield Entry(folder, name, min(path.lstat().st_mtime, now), _disk_usage(path), is_stray=True)
        return
    parts = (lock, lock.with_suffix(""), lock.with_suffix(_DRAFT))
    if path == next((part for part in parts if os.path.lexists(part)), None):
        used_at = min(path.lstat().st_mtime, now)
        yield Entry(folder, lock.name, used_at, sum(_disk_usage(part) for part in parts))


def _is_legal(lock: Path) -> bool:
    """True if `build_once` can have made the lock: the draft next to it has a valid name, and the key has no dot."""
    return "." not in lock.stem and len(os.fsencode(lock.with_suffix(_DRAFT).name)) <= _MAX_NAME_BYTES


def _disk_usage(path: Path) -> int:
    """The bytes of the blocks of `path` and all below it, at least `_MIN_BYTES` for each name.

    A file with several links counts once: each link has an equal share. That needs no memory of the files so far.
    """
    size = 0
    # Other processes may delete files concurrently. A job must not hide files by the mode of their folder.
    with contextlib.suppress(OSError):
        top = path.lstat()
        if stat.S_ISDIR(top.st_mode):  # The walk leaves it out.
            size += max(top.st_blocks * 512, _MIN_BYTES)
        for _, _, found in walk(path, _LIST, follow_parent=False):
            links = 1 if stat.S_ISDIR(found.st_mode) else max(1, found.st_nlink)
            size += max(found.st_blocks * 512 // links, _MIN_BYTES)
    return size


def _delete_entry(entry: Entry) -> bool:
    """Returns False if the entry is in use. Raises `OSError` if a part stays."""
    if entry.is_empty:
        entry.path.rmdir()  # Only if it is still empty: a build can have begun in it.
    elif entry.is_stray:
        _delete(entry.path)
    else:
        return _delete_unused(entry.path)
    return True


def _delete_unused(lock: Path) -> bool:
    """Delete an entry with its lock file; returns False if the entry is in use. Raises `OSError` if a part stays."""
    target = lock.with_suffix("")
    if os.path.lexists(lock) and not stat.S_ISREG(lock.lstat().st_mode):
        _delete(lock)  # Only a job can have made it.
    with _exclusive(lock) as exclusive:
        if exclusive:
            # Rename first: a partly deleted entry must never look complete.
            aside = target.with_suffix(_DRAFT)
            _delete(aside)
            if os.path.lexists(target):
                target.rename(aside)
                _delete(aside)
            lock.unlink()
    return exclusive


def _delete(path: Path) -> None:
    if not delete_tree(path, follow_parent=False):
        raise OSError(f"{path} can't be deleted")


def _acquire_shared(target: Path) -> bool:
    """Lock the entry until this process ends and record the use; returns False if it does not exist.

    Blocks while another process builds or evicts the entry.
    """
    lock = target.with_suffix(_LOCK)
    if lock not in _held_locks:
        descriptor = open_regular(lock, os.O_RDWR | os.O_CREAT)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if not (_is_same_file(descriptor, lock) and target.exists()):
            os.close(descriptor)
            return False
        _held_locks[lock] = descriptor
    os.utime(lock)
    return True


@contextmanager
def _exclusive(path: Path) -> Generator[bool]:
    """Hold the exclusive lock `path`; yields False if another process holds it, or has just evicted the entry."""
    with os.fdopen(open_regular(path, os.O_RDWR | os.O_CREAT), "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel releases it if this process dies
            exclusive = _is_same_file(lock.fileno(), path)
        except BlockingIOError:
            exclusive = False
        yield exclusive


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _build_atomically(target: Path, build: Callable[[Path], None]) -> None:
    draft = target.with_suffix(_DRAFT)
    for left in (draft, target):  # A build that failed leaves a draft. A target is here at most a link to nothing.
        _delete(left)
    draft.mkdir()
    try:
        build(draft)
        os.rename(draft, target)
    except BaseException:
        # Nobody may ever build this entry again, and a draft counts only above the cache's limit.
        delete_tree(draft)
        raise
