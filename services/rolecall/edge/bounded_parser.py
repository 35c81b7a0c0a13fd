"""An HTTP parser that refuses requests of many tiny parts, and requests whose end is ambiguous.

h11 parses header lines and chunks one by one, in Python and on the event loop, before anyone checks a token: 20,000
header lines of one letter take 0.2 s, and as many chunks of one byte take longer than a second.

If a proxy and this server disagree on where a body ends, a client can smuggle a request past the proxy. h11 accepts
three forms that servers and proxies read differently, and that RFC 9112 lets a server refuse: `Transfer-Encoding` with
`Content-Length`, `Transfer-Encoding` in HTTP/1.0, and header fields that continue on the next line.
"""

import re
from typing import NoReturn

import h11

MAX_LINES = 100
"""The most fields of a head or a trailer, as in Apache's `LimitRequestFields`."""
MAX_SMALL_CHUNKS = 100
"""The most chunks of a body, and one more for each `CHUNK_BYTES` of it."""
CHUNK_BYTES = 256
_END = re.compile(rb"\n\r?\n")
_FOLD = re.compile(rb"\n[ \t]")
_LAST_CHUNK = re.compile(rb"(?:\r?\n)?0+(?:;[^\n]*)?[ \t]*\r?\n")
"""The line of the chunk of size 0, after what h11 has not read of the previous chunk's end."""


class BoundedConnection(h11.Connection):
    """The server's side of a connection."""

    def __init__(self, max_incomplete_event_size: int) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size)
        self._chunks = self._body_bytes = 0
        self._awaits_chunk = self._is_in_trailer = False

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """As h11's. Also raises `RemoteProtocolError` for too many parts, and for a request with an ambiguous end."""
        is_in_head = self.their_state is h11.IDLE
        buffered = self.trailing_data[0] if is_in_head or self._awaits_chunk or self._is_in_trailer else b""  # A copy.
        if self._awaits_chunk:
            self._is_in_trailer = self._is_in_trailer or _LAST_CHUNK.match(buffered) is not None
        if self._is_in_trailer or is_in_head:
            self._check_lines(buffered)
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = self._body_bytes = 0
            names = {name for name, _ in event.headers}
            self._awaits_chunk = b"transfer-encoding" in names
            if self._awaits_chunk and (b"content-length" in names or event.http_version < b"1.1"):
                self._refuse("Transfer-Encoding is valid only in HTTP/1.1 and without Content-Length")
        elif isinstance(event, h11.Data):
            # Only between two chunks: the bytes of a body can look like anything.
            self._awaits_chunk = event.chunk_end
            self._chunks += event.chunk_end  # Not `chunk_start`, which no event has if h11 reads the size alone.
            self._body_bytes += len(event.data)
            if self._chunks > MAX_SMALL_CHUNKS + self._body_bytes // CHUNK_BYTES:
                self._refuse("the body has too many small chunks")
        elif isinstance(event, h11.EndOfMessage):
            self._awaits_chunk = self._is_in_trailer = False
        elif event is h11.NEED_DATA and self._awaits_chunk:
            # If h11 has read the line with a chunk's size, the next bytes are the body's.
            read = buffered[: len(buffered) - len(self.trailing_data[0])]
            self._awaits_chunk = not read.strip(b"\r\n")
        return event

    def _check_lines(self, buffered: bytes) -> None:
        """Refuse a head or a trailer that is too long already, or that has a folded line."""
        found = _END.search(buffered)
        end = found.start() if found else len(buffered)
        if buffered.count(b"\n", 0, end) > MAX_LINES:
            self._refuse("the head or the trailer has too many lines")
        if _FOLD.search(buffered, 0, end):
            self._refuse("the head or the trailer has a folded line")

    def _refuse(self, problem: str) -> NoReturn:
        """As h11 for its own errors, so that nothing more is parsed."""
        self._process_error(self.their_role)  # pyright: ignore[reportPrivateUsage] - it has no public name
        raise h11.RemoteProtocolError(problem)
