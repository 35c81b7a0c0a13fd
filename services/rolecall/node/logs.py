"""The files of a worker as they grow: the node sends log and progress to the master, and reads the progress lines."""

import errno
import logging
import time
from collections.abc import Callable

from rolecall.logs import about
from rolecall.node.client import MasterClient, MasterFull, StreamRefused
from rolecall.node.folder import Folder
from rolecall.node.reconcile import Key
from rolecall.spec.model import parse_untrusted
from rolecall.spec.redaction import redact_text
from rolecall.spec.report import ProgressLine

CHUNK_BYTES = 256 * 1024
MAX_LINE_BYTES = 64 * 1024
"""A progress line that is longer is skipped. Only results, which the node doesn't need, can be that long."""
_MAX_LINES = 1000
"""The maximum number of progress lines per read, because the event loop waits meanwhile."""
FULL_S = 5.0
"""The delay before a log that the master had no space for is sent again."""

_LOG = logging.getLogger(__name__)


class Stream:
    """Sends one file of a worker to the master, in chunks. A chunk that is sent twice changes nothing there.

    With `keep_bytes`, the file takes little more space than that here: sent bytes are freed, and while the master is
    unavailable, only the first and the newest bytes are kept. Bytes beyond `max_bytes` are not sent.
    """

    def __init__(
        self,
        key: Key,
        name: str,
        folder: Folder,
        file: str,
        *,
        keep_bytes: int | None = None,
        max_bytes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._key = key
        self._name = name
        self._folder = folder
        self._file = file
        self._keep_bytes = keep_bytes
        self._max_bytes = max_bytes
        self._clock = clock
        self._shipped = 0
        """The offset of the next chunk."""
        self._master_size = 0
        """The size of the stream at the master. If the next chunk starts later, the bytes in between are lost."""
        self._freed = 0
        self._lost: tuple[int, int] | None = None
        """A range after `_shipped` that will not be sent."""
        self._refused = False
        self._held_until = 0.0

    @property
    def waits(self) -> bool:
        """True while the next chunk waits because the master had no space for it."""
        return self._clock() < self._held_until

    @property
    def size(self) -> int:
        """The file's size in bytes; 0 while it does not exist."""
        return self._folder.size(self._file)

    async def ship(self, client: MasterClient) -> bool:
        """Send the next chunk; return whether there may be more. Raises `MasterUnreachable`.

        A log that the master has no space for waits for some seconds, so that reports and progress are sent before it.
        """
        if not (chunk := self._prepare()):
            return False
        try:
            cut = self._shipped > self._master_size
            self._master_size = await client.ship(self._key, self._name, self._shipped, chunk, cut=cut)
            # A master that lost its last bytes gets them again, except those that are freed here.
            self._shipped = max(self._master_size, self._freed)
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
        extra = self._about("stream_abandoned")
        _LOG.warning("the %s of worker %s is not sent any further: %s", self._name, self._key, why, extra=extra)
        self._refused = True

    def _prepare(self) -> bytes:
        """Free space and return the next chunk, empty if there is none. A file that can't be read is abandoned."""
        try:
            if self._keep_bytes is not None:
                self._bound(self._keep_bytes)
            return b"" if self._refused or self.waits else self._next_chunk()
        except OSError as error:
            if not self._refused:
                self.give_up(error)
            return b""

    def _next_chunk(self) -> bytes:
        size = CHUNK_BYTES
        if self._lost is not None:
            begin, end = self._lost
            if self._shipped < begin:
                size = min(size, begin - self._shipped)
            else:
                self._shipped, self._freed, self._lost = end, end, None
        if self._max_bytes is not None:
            size = min(size, self._max_bytes - self._shipped)
            if size <= 0 and self.size > self._max_bytes:
                raise OSError(errno.EFBIG, f"it has more than {self._max_bytes} bytes")
        return self._folder.read(self._file, self._shipped, size)

    def _bound(self, keep_bytes: int) -> None:
        """Free the sent bytes, and the middle of those that wait for an unavailable master."""
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
    """Reads a worker's progress file as it grows, in chunks."""

    def __init__(self, key: Key, folder: Folder, file: str) -> None:
        self._key = key
        self._folder = folder
        self._file = file
        self._offset = 0
        self._skips_first = False
        """True if the line at the offset is the rest of one that is too long."""
        self._logged = False

    def read(self) -> list[ProgressLine]:
        """The next complete lines without invalid ones, of which the first is logged."""
        chunk = self._folder.read(self._file, self._offset, CHUNK_BYTES)
        *lines, rest = chunk.split(b"\n", _MAX_LINES)
        self._offset += len(chunk) - len(rest)
        found = [line for raw in lines[self._skips_first :] if (line := self._parse(raw)) is not None]
        if lines:
            self._skips_first = False
        elif len(chunk) == CHUNK_BYTES:
            self._log_invalid(chunk, f"it has more than {CHUNK_BYTES} bytes")
            self._offset += len(chunk)
            self._skips_first = True
        return found

    def _parse(self, raw: bytes) -> ProgressLine | None:
        if len(raw) > MAX_LINE_BYTES:
            self._log_invalid(raw, f"it has more than {MAX_LINE_BYTES} bytes")
            return None
        try:
            return parse_untrusted(ProgressLine, raw)
        except ValueError as error:
            self._log_invalid(raw, error)
            return None

    def _log_invalid(self, raw: bytes, why: object) -> None:
        if not self._logged:
            text = "worker %s wrote a line that is not a progress line: %r (%s)"
            extra = about("progress_line_unreadable", **self._key._asdict())
            # Redacted before they are cut.
            line, reason = (redact_text(one)[:200] for one in (raw.decode(errors="replace"), str(why)))
            _LOG.warning(text, self._key, line, reason, extra=extra)
        self._logged = True
