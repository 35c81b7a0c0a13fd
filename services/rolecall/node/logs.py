"""A worker's files as they grow: log and progress go to the master by offset, progress lines are read here."""

import ctypes
import logging
import os
import time
from pathlib import Path

from pydantic import ValidationError

from rolecall.node.client import MasterClient, MasterFull, StreamRefused
from rolecall.node.reconcile import Key
from rolecall.spec.report import ProgressLine

PIECE_BYTES = 256 * 1024
FULL_S = 5.0
"""After which a log is sent again that the master had no room for."""

_LOG = logging.getLogger(__name__)
_LIBC = ctypes.CDLL(None, use_errno=True)
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
"""Modes of fallocate(2)."""


class Stream:
    """One file of one worker, on its way to the master. A piece that is sent twice changes nothing there.

    With `keep_bytes` the file takes little more space here than that: what has been sent is freed, and while the master
    is away only the head and the newest bytes are kept.
    """

    def __init__(self, key: Key, name: str, path: Path, *, keep_bytes: int | None = None) -> None:
        self._key = key
        self._name = name
        self._path = path
        self._keep_bytes = keep_bytes
        self._shipped = 0
        """Where the next piece starts."""
        self._there = 0
        """The master's size of the stream. If the next piece starts later, what lies between is lost."""
        self._freed = 0
        self._lost: tuple[int, int] | None = None
        """What will not be sent, ahead of `_shipped`."""
        self._refused = False
        self._held_until = 0.0

    @property
    def waits(self) -> bool:
        """Whether the master had no room for the next piece, which is sent again later."""
        return time.monotonic() < self._held_until

    @property
    def size(self) -> int:
        """The file's size in bytes; 0 while it does not exist."""
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    async def ship(self, client: MasterClient) -> bool:
        """Send the next piece; return whether there may be more. Raises `MasterUnreachable`.

        A log that the master has no room for waits here for some seconds, so that reports and progress go ahead of it.
        """
        if self._keep_bytes is not None:
            self._bound(self._keep_bytes)
        if self._refused or self.waits or not (piece := self._next_piece()):
            return False
        try:
            cut = self._shipped > self._there
            self._there = await client.ship(self._key, self._name, self._shipped, piece, cut=cut)
            # A master that lost its last bytes wants them again, but what is freed is gone.
            self._shipped = max(self._there, self._freed)
        except StreamRefused as error:
            _LOG.warning("%s of worker %s is not sent any further: %s", self._name, self._key, error)
            self._refused = True
        except MasterFull as error:
            if self._name != "log":
                raise
            if not self._held_until:
                _LOG.warning("the log of worker %s waits here: %s", self._key, error)
            self._held_until = time.monotonic() + FULL_S
            return False
        return True

    def _next_piece(self) -> bytes:
        most = PIECE_BYTES
        if self._lost is not None:
            begin, end = self._lost
            if self._shipped < begin:
                most = min(most, begin - self._shipped)
            else:
                self._shipped, self._freed, self._lost = end, end, None
        return read_piece(self._path, self._shipped, most)

    def _bound(self, keep_bytes: int) -> None:
        """Free what has been sent, and the middle of what waits for a master that is away."""
        slack = keep_bytes // 8
        if self._shipped - self._freed > slack:
            free(self._path, self._freed, self._shipped)
            self._freed = self._shipped
        begin, end = self._lost or (max(self._shipped, keep_bytes // 2),) * 2
        newest = self.size - keep_bytes // 2
        if newest - end > slack:
            free(self._path, end, newest)
            self._lost = (begin, newest)


class ProgressReader:
    """Reads a worker's progress file line by line as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[ProgressLine]:
        """The lines that were completed since the last call. A line that can't be understood is logged and left out."""
        piece = read_piece(self._path, self._offset)
        complete = piece[: piece.rfind(b"\n") + 1]
        self._offset += len(complete)
        return [line for raw in complete.splitlines() if (line := self._parse(raw)) is not None]

    def _parse(self, raw: bytes) -> ProgressLine | None:
        try:
            return ProgressLine.model_validate_json(raw)
        except ValidationError as error:
            _LOG.warning("%s has a line that is no progress line: %r (%s)", self._path, raw[:200], error)
            return None


def free(path: Path, begin: int, end: int) -> None:
    """Give the space of the bytes [begin, end) back to the file system; the file keeps its size."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        mode = _KEEP_SIZE | _PUNCH_HOLE
        if _LIBC.fallocate(descriptor, mode, ctypes.c_int64(begin), ctypes.c_int64(end - begin)) != 0:
            _LOG.warning("%s: its space can't be freed while it is written: %s", path, os.strerror(ctypes.get_errno()))
    finally:
        os.close(descriptor)


def read_piece(path: Path, offset: int, most: int = -1) -> bytes:
    """Up to `most` bytes of the file from `offset`; nothing while it does not exist."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(most)
    except FileNotFoundError:
        return b""
