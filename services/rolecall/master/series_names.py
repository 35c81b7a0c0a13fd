"""The names of the values in progress streams.

They are saved next to each stream while it is read for the job's progress, so that a chart need not read the streams of
200 workers to learn which ones it shows.
"""

import re
from collections.abc import Iterable
from typing import Self

from rolecall.master.progress_lines import names_in, plotted
from rolecall.master.streams import StreamKey, Streams
from rolecall.spec.report import ProgressLine

_MOST_SHAPES = 1000
_MOST_CHARS = 16 << 10
"""The maximum length of all names of one stream. A job's code may report any; charts don't find those beyond it."""
_UNSAVED_BYTES = 8 << 10
"""The maximum part of a stream that a restarted master reads again for its names."""
_NUMBER = re.compile(rb'":-?[0-9][0-9.e+-]*')
"""The end of a name, and a number: in these, two lines with the same names can differ."""


class SeriesNames:
    """The names of the values in one stream up to an offset. Starts with those that are saved. Blocks."""

    def __init__(self, streams: Streams, key: StreamKey) -> None:
        self._streams, self._key = streams, key
        self.end, self.names = streams.saved_names(key)
        """The offset of the next line, and the names before it."""
        self._chars = sum(map(len, self.names))
        self._saved = self.end
        self._has_new = False
        self._shapes = set[int]()

    @property
    def size(self) -> int:
        """The number of values in memory."""
        return 1 + len(self.names) + len(self._shapes)

    def feed(self, lines: Iterable[bytes]) -> Self:
        """Add the names in the next lines. Parses only one of those that differ in nothing but numbers."""
        for raw in lines:
            self.end += len(raw)
            shape = hash(_NUMBER.sub(b'":', raw))
            if shape not in self._shapes and len(self._shapes) < _MOST_SHAPES:
                self._shapes.add(shape)
                self._add(plotted([raw]))
        return self

    def feed_parsed(self, lines: Iterable[ProgressLine], end: int) -> Self:
        """Add the names in the next lines, which end at offset `end`."""
        self._add(lines)
        self.end = max(self.end, end)
        return self

    def is_due(self) -> bool:
        """Return whether there are new names to be saved, or a part of the stream that should not be read again."""
        return self._has_new or self.end - self._saved >= _UNSAVED_BYTES

    def save(self) -> None:
        """Save the names. Raises `OSError`. Blocks."""
        self._streams.save_names(self._key, self.end, self.names)
        self._saved, self._has_new = self.end, False

    def _add(self, lines: Iterable[ProgressLine]) -> None:
        for line in lines:
            for name in names_in(line) - self.names:
                if self._chars + len(name) <= _MOST_CHARS:
                    self.names.add(name)
                    self._chars += len(name)
                    self._has_new = True
