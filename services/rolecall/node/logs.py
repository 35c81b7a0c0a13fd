"""A worker's files as they grow: log and progress go to the master by offset, progress lines are read here."""

import logging
from pathlib import Path

from pydantic import ValidationError

from rolecall.node.client import MasterClient, StreamRefused
from rolecall.node.reconcile import Key
from rolecall.spec.report import ProgressLine

PIECE_BYTES = 256 * 1024

_LOG = logging.getLogger(__name__)


class Stream:
    """One file of one worker, on its way to the master. A piece that is sent twice changes nothing there."""

    def __init__(self, key: Key, name: str, path: Path) -> None:
        self._key = key
        self._name = name
        self._path = path
        self._shipped = 0
        self._refused = False

    async def ship(self, client: MasterClient) -> bool:
        """Send the next piece; return whether there may be more. Raises `MasterUnreachable`."""
        piece = b"" if self._refused else read_piece(self._path, self._shipped, PIECE_BYTES)
        if not piece:
            return False
        try:
            self._shipped = await client.ship(self._key, self._name, self._shipped, piece)
        except StreamRefused as error:
            _LOG.warning("%s of worker %s is not sent any further: %s", self._name, self._key, error)
            self._refused = True
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
