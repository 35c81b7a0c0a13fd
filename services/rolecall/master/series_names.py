"""The names of the values in progress streams.

They are saved beside each stream while it is read for the job's progress, so that a chart need not read the streams of
200 workers to learn which ones it shows.
"""

import re
from collections.abc import Iterable
from typing import Self

from rolecall.master.progress_lines import names_in, plotted
from rolecall.master.streams import StreamKey, Streams
from rolecall.spec.report import ProgressLine

_MOST_NAMES = 1000
"""The maximum number of names of one stream."""
_UNSAVED_BYTES = 8 << 10
"""The maximum part of a stream that a restarted master reads again for its names."""
_NUMBER = re.compile(rb'":-?[0-9][0-9.e+-]*')
"""The end of a name, and a number: in these, two lines with the same names can differ."""


class SeriesNames:
    """The names of the values in one stream up to an offset. Starts with what is saved; blocks."""

    def __init__(self, streams: Streams, key: StreamKey) -> None:
        self._streams, self._key = streams, key
        self.end, self.names = streams.saved_names(key)
        """The offset of the next line, and the names before it."""
        self._saved = self.end
        self._shapes = set[int]()

    def feed(self, lines: Iterable[bytes]) -> Self:
        """Add the names in the next lines. Parses only one of those that differ in nothing but numbers."""
        for raw in lines:
            self.end += len(raw)
            shape = hash(_NUMBER.sub(b'":', raw))
            if shape not in self._shapes and max(len(self._shapes), len(self.names)) < _MOST_NAMES:
                self._shapes.add(shape)
                self._add(plotted([raw]))
        return self

    def save(self, lines: Iterable[ProgressLine], end: int) -> None:
        """Add the names in the next lines, which end at offset `end`, and save new ones."""
        known = len(self.names)
        self._add(lines)
        self.end = max(self.end, end)
        if len(self.names) > known or self.end - self._saved >= _UNSAVED_BYTES:
            self._streams.save_names(self._key, self.end, self.names)
            self._saved = self.end

    def _add(self, lines: Iterable[ProgressLine]) -> None:
        for line in lines:
            if len(self.names) < _MOST_NAMES:
                self.names |= names_in(line)
