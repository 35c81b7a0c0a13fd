"""A worker's files as they grow: log and progress go to the master by offset, progress lines are read here."""

import errno
import logging
import time
from collections.abc import Callable

from pydantic import ValidationError

from rolecall.edge.logs import about
from rolecall.node.client import MasterClient, MasterFull, StreamRefused
from rolecall.node.folder import Folder
from rolecall.node.reconcile import Key
from rolecall.spec.report import ProgressLine

PIECE_BYTES = 256 * 1024
LINE_BYTES = 64 * 1024
"""A progress line that is longer is skipped."""
_LINES = 1000
"""Progress lines that are read at once: the daemon has other things to do meanwhile."""
FULL_S = 5.0
"""After which a log is sent again that the master had no room for."""

_LOG = logging.getLogger(__name__)


class Stream:
    """One file of one worker, on its way to the master. A piece that is sent twice changes nothing there.

    With `keep_bytes` the file takes little more space here than that: what has been sent is freed, and while the master
    is away only the head and the newest bytes are kept. What lies beyond `most_bytes` is not sent.
    """

    def __init__(
        self,
        key: Key,
        name: str,
        folder: Folder,
        file: str,
        *,
        keep_bytes: int | None = None,
        most_bytes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._key = key
        self._name = name
        self._folder = folder
        self._file = file
        self._keep_bytes = keep_bytes
        self._most_bytes = most_bytes
        self._clock = clock
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
        return self._clock() < self._held_until

    @property
    def size(self) -> int:
        """The file's size in bytes; 0 while it does not exist."""
        return self._folder.size(self._file)

    async def ship(self, client: MasterClient) -> bool:
        """Send the next piece; return whether there may be more. Raises `MasterUnreachable`.

        A log that the master has no room for waits here for some seconds, so that reports and progress go ahead of it.
        """
        if not (piece := self._prepare()):
            return False
        try:
            cut = self._shipped > self._there
            self._there = await client.ship(self._key, self._name, self._shipped, piece, cut=cut)
            # A master that lost its last bytes wants them again, but what is freed is gone.
            self._shipped = max(self._there, self._freed)
        except StreamRefused as error:
            self.give_up(error)
        except MasterFull as error:
            if self._name != "log":
                raise
            if not self._held_until:
                _LOG.warning(
                    "the log of worker %s is sent later: %s", self._key, error, extra=self._about("log_delayed")
                )
            self._held_until = self._clock() + FULL_S
            return False
        return True

    def give_up(self, why: Exception) -> None:
        """Send nothing more of the stream."""
        extra = self._about("stream_abandoned")
        _LOG.warning("the %s of worker %s is not sent any further: %s", self._name, self._key, why, extra=extra)
        self._refused = True

    def _prepare(self) -> bytes:
        """Keep the file to its size and return what to send now. A file that can't be read is given up."""
        try:
            if self._keep_bytes is not None:
                self._bound(self._keep_bytes)
            return b"" if self._refused or self.waits else self._next_piece()
        except OSError as error:
            if not self._refused:
                self.give_up(error)
            return b""

    def _next_piece(self) -> bytes:
        most = PIECE_BYTES
        if self._lost is not None:
            begin, end = self._lost
            if self._shipped < begin:
                most = min(most, begin - self._shipped)
            else:
                self._shipped, self._freed, self._lost = end, end, None
        if self._most_bytes is not None:
            most = min(most, self._most_bytes - self._shipped)
            if most <= 0 and self.size > self._most_bytes:
                raise OSError(errno.EFBIG, f"it has more than {self._most_bytes} bytes")
        return self._folder.read(self._file, self._shipped, most)

    def _bound(self, keep_bytes: int) -> None:
        """Free what has been sent, and the middle of what waits for a master that is away."""
        slack = keep_bytes // 8
        if self._shipped - self._freed > slack:
            self._free(self._freed, self._shipped)
            self._freed = self._shipped
        begin, end = self._lost or (max(self._shipped, keep_bytes // 2),) * 2
        newest = self.size - keep_bytes // 2
        if newest - end > slack:
            self._free(end, newest)
            self._lost = (begin, newest)

    def _free(self, begin: int, end: int) -> None:
        try:
            self._folder.free(self._file, begin, end)
        except OSError as error:
            extra = self._about("log_not_freed")
            _LOG.warning("the log of worker %s takes space until the worker ends: %s", self._key, error, extra=extra)

    def _about(self, event: str) -> dict[str, object]:
        return about(event, **self._key._asdict())


class ProgressReader:
    """Reads a worker's progress file line by line as it grows, a bounded piece at a time."""

    def __init__(self, key: Key, folder: Folder, file: str) -> None:
        self._key = key
        self._folder = folder
        self._file = file
        self._offset = 0
        self._skips = False
        """Whether the line at the offset is the rest of one that is too long."""
        self._complained = False

    def read(self) -> list[ProgressLine]:
        """The next lines that are complete. What can't be understood is left out, and logged the first time."""
        piece = self._folder.read(self._file, self._offset, PIECE_BYTES)
        *lines, rest = piece.split(b"\n", _LINES)
        self._offset += len(piece) - len(rest)
        found = [line for raw in lines[self._skips :] if (line := self._parse(raw)) is not None]
        if lines:
            self._skips = False
        elif len(piece) == PIECE_BYTES:
            self._complain(piece, f"it has more than {PIECE_BYTES} bytes")
            self._offset += len(piece)
            self._skips = True
        return found

    def _parse(self, raw: bytes) -> ProgressLine | None:
        if len(raw) > LINE_BYTES:
            self._complain(raw, f"it has more than {LINE_BYTES} bytes")
            return None
        try:
            return ProgressLine.model_validate_json(raw)
        except ValidationError as error:
            self._complain(raw, str(error))
            return None

    def _complain(self, raw: bytes, why: str) -> None:
        if not self._complained:
            text = "worker %s wrote a line that is not a progress line: %r (%s)"
            extra = about("progress_line_unreadable", **self._key._asdict())
            _LOG.warning(text, self._key, raw[:200], why[:200], extra=extra)
        self._complained = True
