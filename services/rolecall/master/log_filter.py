"""Selects lines of a worker's log by their text and by the time of its records. Pure."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime

_TIME = rb"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{3})?(?:Z|[+-]\d\d:?\d\d)"
_RECORD = re.compile(rb'(?:\A|(?<=[\n\r]))(?:\{"time": ")?(' + _TIME + rb")")
_RECORD_LINE = re.compile(r'(?:\{"time": ")?(' + _TIME.decode() + ")", re.ASCII)
_FIRST_CHARACTERS = frozenset("0123456789{")
_LAST_LINES, _RECORD_BYTES = 64, 64
CONTINUATION = "    "
"""The beginning of a line that belongs to the record before it, such as those of a traceback."""


class TextFilter:
    """Admits the lines of one worker that contain one of `texts`, in upper or lower case.

    Users see each line after `prefix`, so a text can begin in the prefix, or be part of it.
    """

    def __init__(self, texts: Sequence[str], prefix: str) -> None:
        self._texts = [text.casefold() for text in texts]
        self._prefix = prefix.casefold()
        # What a line must contain. For a text that begins in the prefix, it is the rest.
        self._parts = [*self._texts, *self._rests()]
        self._part_bytes = [part.encode(errors="surrogatepass") for part in self._parts]
        self._admits_all = any(text in self._prefix for text in self._texts)

    def may_admit_some(self, data: bytes) -> bool:
        """Return False only if no line of `data` is admitted."""
        if self._admits_all:
            return True
        if data.isascii():  # Bytes are folded and searched in half the time.
            lowered = data.lower()
            return any(part in lowered for part in self._part_bytes)
        folded = data.decode(errors="replace").casefold()
        return any(part in folded for part in self._parts)

    def admits(self, line: str) -> bool:
        """Return whether the line, which comes without the prefix, contains one of the texts."""
        if self._admits_all:
            return True
        if not line:
            return False  # This makes empty lines cheap, of which a job can print a million per megabyte.
        folded = self._prefix + line.casefold()
        return any(text in folded for text in self._texts)

    def _rests(self) -> Iterator[str]:
        for text in self._texts:
            for size in range(1, len(text)):
                if self._prefix.endswith(text[:size]):
                    yield text[size:]


def record_times(data: bytes, *, begins_line: bool) -> Iterator[tuple[int, datetime]]:
    """The offsets and times of the log records in `data`. Other lines, which a job prints, have no time.

    `begins_line` says whether a line begins at the first byte.
    """
    for found in _RECORD.finditer(data):
        if (begins_line or found.start() > 0) and (moment := _parsed(found[1].decode())) is not None:
            with suppress(OverflowError):
                yield found.start(), moment.astimezone(UTC)


def record_time(line: str) -> float | None:
    """The time of the log record that `line` begins, in seconds since 1970. Other lines have no time."""
    if line[:1] not in _FIRST_CHARACTERS or (found := _RECORD_LINE.match(line)) is None:
        return None
    moment = _parsed(found[1])
    return None if moment is None else moment.timestamp()


def last_record_time(data: bytes) -> float:
    """The time of the last record in whole lines, if it is among the last 64; else minus infinity."""
    end = len(data)
    for _ in range(_LAST_LINES):
        begin = data.rfind(b"\n", 0, max(0, end - 1)) + 1
        if (time := record_time(data[begin : begin + _RECORD_BYTES].decode(errors="replace"))) is not None:
            return time
        if begin == 0:
            break
        end = begin
    return float("-inf")


def _parsed(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text.replace(",", "."))
    except ValueError:
        return None
