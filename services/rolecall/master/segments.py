"""A log of limited size: its first and last bytes are kept, and the middle is deleted.

A log is a folder of segments: files named after the offset of their first byte. When the last segment is full, a new
one begins, and the oldest segments after the head are deleted until the tail is small enough.
"""

import fnmatch
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_FIRST = "log.txt"
_SHARE = 8
"""The kept size has this number of segments. The size of the tail is exact to within one segment."""


class LogSegment(NamedTuple):
    """One file of a log."""

    start: int
    """Offset of its first byte in the log."""
    size: int
    path: Path

    @property
    def end(self) -> int:
        return self.start + self.size


class Chunk(NamedTuple):
    """Bytes of a log. They start later than requested if the log has a gap."""

    start: int
    data: bytes

    @property
    def end(self) -> int:
        return self.start + len(self.data)


def segments(folder: Path) -> list[LogSegment]:
    """The segments of the log in `folder`, in order."""
    found: list[LogSegment] = []
    with suppress(FileNotFoundError):
        for name in fnmatch.filter(os.listdir(folder), "log*.txt"):
            path = folder / name
            start = 0 if name == _FIRST else int(name.removeprefix("log.").removesuffix(".txt"))
            with suppress(FileNotFoundError):  # It can be deleted at any time.
                found.append(LogSegment(start, path.stat().st_size, path))
    return sorted(found)


def size(folder: Path) -> int:
    """The length of the log in bytes, including gaps."""
    found = segments(folder)
    return found[-1].end if found else 0


def append(folder: Path, offset: int, data: bytes, keep_bytes: int, *, cut: bool = False) -> int:
    """Append the new part of the bytes that start at `offset`. Returns the log's length in bytes.

    Bytes after a gap are not written, unless `cut` says that the missing ones no longer exist.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = segments(folder)
    have = found[-1].end if found else 0
    start = max(have, offset)
    if (offset > have and not cut) or not (fresh := data[start - offset :]):
        return have
    if found and found[-1].end == start and found[-1].size < keep_bytes // _SHARE:
        path = found[-1].path
    else:
        path = folder / (_FIRST if start == 0 else f"log.{start}.txt")
        _drop_middle(found, keep_bytes)
    with path.open("ab") as file:
        file.write(fresh)
    return start + len(fresh)


def read(folder: Path, start: int, max_bytes: int) -> Chunk:
    """Up to `max_bytes` bytes of the log from `start`, or from the end of a gap; empty at the end of the log."""
    for segment in segments(folder):
        if segment.end > start:
            begin = max(start, segment.start)
            with suppress(FileNotFoundError), segment.path.open("rb") as file:
                file.seek(begin - segment.start)
                return Chunk(begin, file.read(max_bytes))
    return Chunk(start, b"")


def _drop_middle(found: list[LogSegment], keep_bytes: int) -> None:
    """Delete the oldest segments after the head until the tail has at most its half. A new segment follows."""
    half = keep_bytes // 2
    tail = [segment for segment in found if segment.start >= half]
    excess = sum(segment.size for segment in tail) - half
    for segment in tail:
        if excess <= 0:
            return
        segment.path.unlink(missing_ok=True)
        excess -= segment.size
