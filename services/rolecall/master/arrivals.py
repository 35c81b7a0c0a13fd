"""The times at which the bytes of a log arrived. They order the lines that have no time of their own.

Each log has a file of marks in its folder. A mark is an offset in the log and the time at which bytes after it began
to arrive. The newest marks are a second apart, and older ones more and more. A file has at most 64 KiB.
"""

import os
import struct
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_NAME = "arrivals"
_MARK = struct.Struct("<Qd")
_EVERY_S = 1.0
_MAX_MARKS = 4096


class Mark(NamedTuple):
    """The bytes from `offset` arrived at `time` or later, in seconds since 1970."""

    offset: int
    time: float


def record(folder: Path, offset: int, time: float) -> None:
    """Add a mark to the log in `folder`, unless the newest one is less than a second older."""
    path = folder / _NAME
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
        count = file.seek(0, os.SEEK_END) // _MARK.size
        if count:
            file.seek(_MARK.size * (count - 1))
            newest = Mark(*_MARK.unpack(file.read(_MARK.size)))
            if 0 <= time - newest.time < _EVERY_S:
                return
        file.seek(_MARK.size * count)  # Overwrites a mark that was written only in part.
        file.write(_MARK.pack(offset, time))
    if count + 1 > _MAX_MARKS:
        marks = read(folder)
        half = len(marks) // 2
        fresh = path.with_suffix(".new")
        fresh.write_bytes(b"".join(_MARK.pack(*mark) for mark in marks[:half:2] + marks[half:]))
        fresh.replace(path)


def read(folder: Path) -> list[Mark]:
    """The marks of the log in `folder`, in the order of their offsets; none for a log of an earlier release."""
    with suppress(FileNotFoundError):
        data = (folder / _NAME).read_bytes()
        return [Mark(*one) for one in _MARK.iter_unpack(data[: len(data) - len(data) % _MARK.size])]
    return []


def arrival(marks: Sequence[Mark], offset: int) -> float:
    """A time before which the byte at `offset` did not arrive."""
    index = bisect_right(marks, offset, key=lambda mark: mark.offset)
    return marks[index - 1].time if index else float("-inf")
