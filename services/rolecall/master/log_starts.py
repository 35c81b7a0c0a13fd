"""Finds where the newest lines of a worker's log begin: since a time, and a number of lines with a text. Blocks."""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime

from rolecall.master.lines import Line, Lines
from rolecall.master.log_filter import CONTINUATION, TextFilter, record_times
from rolecall.master.segments import Chunk
from rolecall.master.streams import StreamKey, Streams

BLOCK = 1 << 20
_OVERLAP = 64
"""More than the bytes of a record's time, which two chunks can share."""
_NEVER = datetime.max.replace(tzinfo=UTC)


def start_since(streams: Streams, key: StreamKey, moment: datetime) -> int:
    """The offset after the last log record from before `moment`, and after the lines that belong to it.

    The times of a log must not decrease, because the search reads only a few blocks of it.
    """
    blocks = range(0, streams.size(key), BLOCK)
    newer = bisect_left(blocks, moment, key=lambda block: _first_time(streams, key, block))
    if newer == 0:
        return 0
    begin = blocks[newer - 1]
    older = (at for at, time in _records(streams, key, begin, begin + BLOCK) if time < moment)
    # It has been deleted meanwhile if the log is at its limit.
    last = max(older, default=begin)
    start = last
    for line in _lines(streams, key, last, Lines(last)):
        if start > last and not line.text.startswith(CONTINUATION):
            break
        start = line.end
    return start


def start_of_last(streams: Streams, key: StreamKey, wanted: TextFilter, count: int, start: int) -> int:
    """The offset at which the last `count` lines begin that `wanted` admits, or `start` if there are fewer after it."""
    end, window = streams.size(key), BLOCK
    if count == 0:
        return end
    while True:
        begin = max(start, end - window)
        lines = Lines(begin, wanted)
        found = deque((line.start for line in _lines(streams, key, begin, lines)), maxlen=count)
        # The first line after an arbitrary offset is the rest of a longer one.
        if begin > start and found and found[0] == begin:
            found.popleft()
        if len(found) == count:
            return found[0]
        if begin == start:
            return start
        window *= 8


def _lines(streams: Streams, key: StreamKey, start: int, lines: Lines) -> Iterator[Line]:
    for chunk in _chunks(streams, key, start):
        yield from lines.feed(chunk)
    yield from lines.flush()


def _chunks(streams: Streams, key: StreamKey, start: int) -> Iterator[Chunk]:
    while (chunk := streams.read_log(key, start, BLOCK)).data:
        yield chunk
        start = chunk.end


def _first_time(streams: Streams, key: StreamKey, start: int) -> datetime:
    return next((time for _, time in _records(streams, key, start)), _NEVER)


def _records(streams: Streams, key: StreamKey, start: int, end: int | None = None) -> Iterator[tuple[int, datetime]]:
    """The offsets and times of the records that begin at `start` or later, and before `end`."""
    # The byte before tells whether a line begins at `start`.
    at = max(0, start - 1)
    while (end is None or at < end) and (chunk := streams.read_log(key, at, BLOCK + 1)).data:
        for begin, time in record_times(chunk.data, begins_line=chunk.start == 0):
            if start <= chunk.start + begin and (end is None or chunk.start + begin < end):
                yield chunk.start + begin, time
        at = chunk.end - _OVERLAP if len(chunk.data) > _OVERLAP and chunk.end < streams.size(key) else chunk.end
