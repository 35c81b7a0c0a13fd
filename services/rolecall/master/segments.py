"""A log in bounded space: its first and its last bytes are kept, what lies between is cut.

A log is a folder of segments, files that are named after the offset of their first byte. A new segment begins when the
last one is full. Then the oldest segments behind the head go, until the tail is small enough.
"""

import fnmatch
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_FIRST = "log.txt"
_SHARE = 8
"""A segment holds this part of what is kept: the tail is exact to within one segment."""


class Segment(NamedTuple):
    """One file of a log."""

    start: int
    """Offset of its first byte in the log."""
    size: int
    path: Path

    @property
    def end(self) -> int:
        """Offset behind its last byte."""
        return self.start + self.size


class Chunk(NamedTuple):
    """Bytes of a log. They start later than asked for where a part of the log was cut."""

    start: int
    data: bytes

    @property
    def end(self) -> int:
        """Offset behind its last byte."""
        return self.start + len(self.data)


def segments(folder: Path) -> list[Segment]:
    """The segments of the log in `folder`, in order."""
    found: list[Segment] = []
    with suppress(FileNotFoundError):
        for name in fnmatch.filter(os.listdir(folder), "log*.txt"):
            path = folder / name
            with suppress(FileNotFoundError):  # It may be cut at this moment.
                found.append(Segment(_start(path), path.stat().st_size, path))
    return sorted(found)


def size(folder: Path) -> int:
    """The length of the log in bytes, cut parts included."""
    found = segments(folder)
    return found[-1].end if found else 0


def append(folder: Path, offset: int, data: bytes, keep_bytes: int, *, cut: bool = False) -> int:
    """Append what the log lacks of the bytes that start at `offset`; return the log's length in bytes.

    Bytes behind a gap are not written, unless `cut` says that nobody has the missing ones any more.
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
    """Up to `max_bytes` bytes of the log from `start` on, or from where it goes on behind a cut; empty at its end."""
    for segment in segments(folder):
        if segment.end > start:
            begin = max(start, segment.start)
            with suppress(FileNotFoundError), segment.path.open("rb") as file:
                file.seek(begin - segment.start)
                return Chunk(begin, file.read(max_bytes))
    return Chunk(start, b"")


def _drop_middle(found: list[Segment], keep_bytes: int) -> None:
    """Delete the oldest segments behind the head until the tail has no more than its half; another one follows it."""
    half = keep_bytes // 2
    tail = [segment for segment in found if segment.start >= half]
    excess = sum(segment.size for segment in tail) - half
    for segment in tail:
        if excess <= 0:
            return
        segment.path.unlink(missing_ok=True)
        excess -= segment.size


def _start(path: Path) -> int:
    return 0 if path.name == _FIRST else int(path.name.removeprefix("log.").removesuffix(".txt"))
