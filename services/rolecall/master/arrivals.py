"""The times at which the bytes of a log arrived. They order the lines that have no time of their own.

Each log has a file of marks in its folder. A mark is an offset in the log and the time at which bytes after it began
to arrive. The newest marks are a second apart, and older ones more and more. A file has at most 64 KiB.
"""

import os
import struct
from array import array
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

_NAME = "arrivals"
_MARK = struct.Struct("<Qd")
_EVERY_S = 1.0
_MAX_MARKS = 4096


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The marks of a log, in the order of their offsets. Arrays, because a reader has those of all logs of a gang."""

    offsets: "array[int]" = field(default_factory=lambda: array("Q"))
    times: "array[float]" = field(default_factory=lambda: array("d"))
    """In seconds since 1970. The bytes from an offset arrived at its time or later."""

    def of(self, offset: int) -> float:
        """A time before which the byte at `offset` did not arrive; minus infinity if nothing is known about it."""
        index = bisect_right(self.offsets, offset)
        return self.times[index - 1] if index else float("-inf")


def record(folder: Path, offset: int, time: float) -> None:
    """Add a mark to the log in `folder`, unless the newest one is less than a second older."""
    path = folder / _NAME
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
        count = file.seek(0, os.SEEK_END) // _MARK.size
        if count:
            file.seek(_MARK.size * (count - 1))
            _, newest = _MARK.unpack(file.read(_MARK.size))
            if 0 <= time - newest < _EVERY_S:
                return
        file.seek(_MARK.size * count)  # Overwrites a mark that was written only in part.
        file.write(_MARK.pack(offset, time))
    if count + 1 > _MAX_MARKS:
        marks = list(_MARK.iter_unpack(path.read_bytes()))
        half = len(marks) // 2
        fresh = path.with_suffix(".new")
        fresh.write_bytes(b"".join(_MARK.pack(*mark) for mark in marks[:half:2] + marks[half:]))
        fresh.replace(path)


def read(folder: Path) -> Arrivals:
    """The marks of the log in `folder`; none for a log of an earlier release."""
    found = Arrivals()
    with suppress(FileNotFoundError):
        data = (folder / _NAME).read_bytes()
        for offset, time in _MARK.iter_unpack(data[: len(data) - len(data) % _MARK.size]):
            found.offsets.append(offset)
            found.times.append(time)
    return found
