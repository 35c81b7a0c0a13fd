"""A worker's files as they grow: log and progress go to the master by offset, progress lines are read here."""

import logging
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


class Stream:
    """One file of one worker, on its way to the master. A piece that is sent twice changes nothing there."""

    def __init__(self, key: Key, name: str, path: Path) -> None:
        self._key = key
        self._name = name
        self._path = path
        self._shipped = 0
        self._refused = False
        self._held_until = 0.0

    @property
    def waits(self) -> bool:
        """Whether the master had no room for the next piece, which is sent again later."""
        return time.monotonic() < self._held_until

    async def ship(self, client: MasterClient) -> bool:
        """Send the next piece; return whether there may be more. Raises `MasterUnreachable`.

        A log that the master has no room for waits here for some seconds, so that reports and progress go ahead of it.
        """
        piece = b"" if self._refused or self.waits else read_piece(self._path, self._shipped, PIECE_BYTES)
        if not piece:
            return False
        try:
            self._shipped = await client.ship(self._key, self._name, self._shipped, piece)
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


def read_piece(path: Path, offset: int, most: int = -1) -> bytes:
    """Up to `most` bytes of the file from `offset`; nothing while it does not exist."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(most)
    except FileNotFoundError:
        return b""
