"""Finds where the newest lines of logs begin: since a time, and a number of lines with a text.

The searches block, and yield after each block that they read.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

from rolecall.master.lines import Lines
from rolecall.master.log_filter import CONTINUATION, TextFilter, record_times
from rolecall.master.merged_log import Found, MergedLog, Source
from rolecall.master.segments import Chunk
from rolecall.master.streams import StreamKey, Streams
from rolecall.master.user_threads import Search

BLOCK = 1 << 16
"""Bytes per step. Each of them can be an empty line, and a search through them must not delay other threads."""
_FEWEST = 64
_OVERLAP = 64
"""More than the bytes of a record's time, which two blocks can share."""


def start_since(streams: Streams, key: StreamKey, moment: datetime) -> Search[int]:
    """The offset after the last log record from before `moment`, and after the lines that belong to it.

    Searches backward, because users want the newest lines.
    """
    end = streams.size(key)
    segments = streams.log_segments(key)
    for begin in (one for start, stop in reversed(segments) for one in reversed(range(start, stop, BLOCK))):
        older = [at for at, time in _records(streams, key, begin) if time < moment]
        yield
        if older:
            return (yield from _after_record(streams, key, older[-1], end))
    return 0


def start_of_last(streams: Streams, key: StreamKey, wanted: TextFilter, count: int, start: int) -> Search[int]:
    """The offset at which the last `count` lines begin that `wanted` admits, or `start` if there are fewer after it."""
    end, window = streams.size(key), 16 * BLOCK
    if count == 0:
        return end
    while True:
        begin = max(start, end - window)
        lines, found = Lines(begin, wanted), deque[int](maxlen=count)
        while lines.next < end and (chunk := streams.read_log(key, lines.next, BLOCK)).data:
            found += (line.start for line in lines.feed(chunk) if wanted.admits(line.text))
            yield
        found += (line.start for line in lines.flush() if wanted.admits(line.text))
        # The first line after an arbitrary offset is the rest of a longer one.
        if begin > start and found and found[0] == begin:
            found.popleft()
        if len(found) == count:
            return found[0]
        if begin == start:
            return start
        window *= 8


def record_before(streams: Streams, key: StreamKey, start: int) -> float:
    """The time of the last record before `start` in a log, in seconds since 1970; minus infinity if none is near."""
    if start == 0:
        return float("-inf")
    begin = max(0, start - BLOCK)
    times = (time.timestamp() for at, time in _records(streams, key, begin) if at < start)
    return max(times, default=float("-inf"))


def starts_of_last(
    streams: Streams, open_tails: Sequence[Callable[[int], Search[Source]]], count: int
) -> Search[list[int]]:
    """The offsets in several logs at which the last `count` lines of all logs together begin.

    Each of `open_tails` opens a log a number of lines before its end. Twice the average number is usually
    enough, which the times of the lines show: no line that was left out is newer than one of the last, if the times in
    each log ascend.
    """
    each = min(count, max(_FEWEST, 2 * count // len(open_tails)))
    while True:
        sources: list[Source] = []
        for open_tail in open_tails:
            sources.append((yield from open_tail(each)))
            yield
        merged, last = MergedLog(streams, sources), deque[Found](maxlen=count)
        sizes, oldest = Counter[int](), dict[int, float]()
        while (found := merged.read()) is not None:
            last += found
            for one in found:
                sizes[one.number] += 1
                oldest.setdefault(one.number, one.time)
            yield
        is_full = len(last) == count
        if each == count or all(
            size < each or (is_full and oldest[number] <= last[0].time) for number, size in sizes.items()
        ):
            starts = [source.lines.next for source in sources]
            for one in reversed(last):
                starts[one.number] = one.line.start
            return starts
        each = min(count, 4 * each)


def _after_record(streams: Streams, key: StreamKey, record: int, end: int) -> Search[int]:
    """The offset after a record and the lines that belong to it."""
    lines, start = Lines(record), record
    while lines.next < end and (chunk := streams.read_log(key, lines.next, BLOCK)).data:
        for line in lines.feed(chunk):
            if start > record and not line.text.startswith(CONTINUATION):
                return start
            start = line.end
        yield
    for line in lines.flush():
        if start > record and not line.text.startswith(CONTINUATION):
            return start
        start = line.end
    return start


def _records(streams: Streams, key: StreamKey, begin: int) -> Iterator[tuple[int, datetime]]:
    """The offsets and times of the records that begin in the block at `begin`."""
    # The byte before tells whether a line begins at `begin`.
    data = _contiguous(streams, key, max(0, begin - 1), BLOCK + 1 + _OVERLAP)
    for offset, time in record_times(data.data, begins_line=data.start == 0):
        if begin <= data.start + offset < begin + BLOCK:
            yield data.start + offset, time


def _contiguous(streams: Streams, key: StreamKey, start: int, size: int) -> Chunk:
    """Up to `size` bytes of the log from `start` or from the end of a gap. They can be in several segments."""
    found = streams.read_log(key, start, size)
    while found.data and len(found.data) < size:
        following = streams.read_log(key, found.end, size - len(found.data))
        if not following.data or following.start != found.end:
            break
        found = Chunk(found.start, found.data + following.data)
    return found
