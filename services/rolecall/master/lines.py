"""The splitting of a log's bytes into lines, and their selection. Pure."""

import re
from itertools import accumulate
from typing import NamedTuple

from rolecall.master.log_filter import TextFilter
from rolecall.master.segments import Chunk

MAX_LINE_BYTES = 1 << 16
"""A longer line is shown in parts."""
_ENDS = re.compile(rb"\r\n|\n|\r")


class Line(NamedTuple):
    """A line of a log without its end, or a part of a long one."""

    text: str
    start: int
    """The offset of its first byte in the log."""
    end: int
    """The offset of its end in the log."""


class Lines:
    """Splits one log, chunk by chunk, starting at the offset `start`, into the lines that `wanted` admits.

    A carriage return ends a line as well, because progress bars write no line feeds. Notes about gaps are always
    included.
    """

    def __init__(self, start: int = 0, wanted: TextFilter | None = None) -> None:
        self._rest = b""
        self._start = start
        self._wanted = wanted

    @property
    def next(self) -> int:
        """The offset of the first byte that has not been fed."""
        return self._start + len(self._rest)

    @property
    def has_rest(self) -> bool:
        """True if the last line has no end yet."""
        return bool(self._rest)

    @property
    def start(self) -> int:
        """The offset of the first byte that no line has had."""
        return self._start

    def skip(self, end: int) -> None:
        """Continue at the offset `end`, where a line begins."""
        self._rest, self._start = b"", end

    def feed(self, chunk: Chunk) -> list[Line]:
        """The lines that end in `chunk`, preceded by a note if the log has a gap before it."""
        found: list[Line] = []
        if chunk.start > self.next:
            begin = self.next
            found = [*self.flush(), Line(cut_note(chunk.start - begin), begin, chunk.start)]
            self._start = chunk.start
        data = self._rest + chunk.data
        # A carriage return at the end may be followed by a line feed, which ends the same line.
        whole = len(data) - data.endswith(b"\r")
        begin = 0
        if self._wanted is None and data.isascii() and b"\r" not in data:
            plain, begin = self._plain(data)
            found += plain
        elif self._wanted is not None and not self._wanted.may_admit_some(data):
            begin = max(data.rfind(b"\n", 0, whole), data.rfind(b"\r", 0, whole)) + 1
        for end in _ENDS.finditer(data, begin, whole):
            found += self._parts(data[begin : end.start()], self._start + begin, end.end() - end.start())
            begin = end.end()
        while len(data) - begin > MAX_LINE_BYTES:
            start = self._start + begin
            found += self._admitted(data[begin : begin + MAX_LINE_BYTES], start, start + MAX_LINE_BYTES)
            begin += MAX_LINE_BYTES
        self._rest, self._start = data[begin:], self._start + begin
        return found

    def flush(self) -> list[Line]:
        """The beginning of a line without an end."""
        if not self._rest:
            return []
        rest, start = self._rest, self._start
        self._rest, self._start = b"", self.next
        return self._admitted(rest.removesuffix(b"\r"), start, self._start)

    def _plain(self, data: bytes) -> tuple[list[Line], int]:
        """The whole lines of ASCII text without carriage returns, and their size. Takes half the time of a search.

        None of them if one is long.
        """
        size = data.rfind(b"\n") + 1
        texts = data[: size - 1].decode().split("\n") if size else []
        if any(len(text) > MAX_LINE_BYTES for text in texts):
            return [], 0
        ends = list(accumulate((len(text) + 1 for text in texts), initial=self._start))
        return list(map(Line, texts, ends, ends[1:])), size

    def _parts(self, line: bytes, start: int, end_size: int) -> list[Line]:
        if len(line) <= MAX_LINE_BYTES:
            return self._admitted(line, start, start + len(line) + end_size)
        cuts = range(0, len(line), MAX_LINE_BYTES)
        ends = [start + min(cut + MAX_LINE_BYTES, len(line)) for cut in cuts]
        ends[-1] += end_size
        found: list[Line] = []
        for cut, end in zip(cuts, ends, strict=True):
            found += self._admitted(line[cut : cut + MAX_LINE_BYTES], start + cut, end)
        return found

    def _admitted(self, data: bytes, start: int, end: int) -> list[Line]:
        text = data.decode(errors="replace")
        return [Line(text, start, end)] if self._wanted is None or self._wanted.admits(text) else []


def cut_note(size: int) -> str:
    """The note that replaces `size` bytes of a log."""
    return f"[{size} bytes of this log were cut here: ROLECALL_LOG_BYTES bounds how much is kept]"
