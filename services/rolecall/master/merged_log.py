"""The logs of several workers, read as one log in the order of time. Reading blocks.

A log record has a time. A line that continues a record, such as those of a traceback, stays with it. Another line
without a time, which a job printed, is as old as the bytes that arrived with it. The order of each worker's lines never
changes, whatever times they have.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from rolecall.master.arrivals import Arrivals
from rolecall.master.lines import Line, Lines
from rolecall.master.log_filter import CONTINUATION, last_record_time, record_time
from rolecall.master.segments import Chunk
from rolecall.master.streams import StreamKey, Streams

_READ_BYTES = 1 << 20
"""Bytes that one call reads, from all logs."""
_BLOCK_BYTES, _MIN_BLOCK_BYTES = 1 << 16, 1 << 10
"""Bytes that are read from one log at once. With more logs there are fewer, because a block of each is in memory."""
_LEAST_BYTES = 1 << 13
"""A smaller part of a block is split into its lines."""
_MANY_LINES, _FEWEST_LINES, _BUFFERED_LINES = 4096, 64, 1 << 16
"""A block with many lines, most of them empty, is read in smaller parts, because each line needs memory: the lines of
one log, of one of very many logs, and of all logs."""

_NEVER = (float("inf"), 0)
_UNKNOWN = float("-inf")


class Found(NamedTuple):
    """A line of one of the logs."""

    time: float
    """In seconds since 1970; minus infinity if nothing is known about it."""
    number: int
    """The number of its log."""
    line: Line


@dataclass(slots=True, eq=False)
class Source:
    """One of the logs, from the position of `lines` to `end`."""

    key: StreamKey
    lines: Lines
    arrivals: Arrivals = field(default_factory=Arrivals)
    end: int | None = None
    """None for a log that still grows."""
    record: float = _UNKNOWN
    """The time of the newest record so far. The first line can continue one from before the position."""
    fed_at: float = 0.0
    """The time at which `lines` got its newest bytes."""
    _previous: float = field(init=False)
    _previous_end: int = field(init=False)
    _buffer: deque[Found] = field(default_factory=deque[Found])

    def __post_init__(self) -> None:
        self._previous, self._previous_end = self.record, self.lines.next

    def add(self, number: int, found: Sequence[Line]) -> None:
        """Append lines of log `number` to the buffer, with their times."""
        for line in found:
            if (own := record_time(line.text)) is not None:
                self.record = time = max(self.record, own)
            elif line.start == self._previous_end and line.text.startswith(CONTINUATION):
                time = self._previous
            else:
                time = max(self.record, self.arrivals.of(line.start))
            self._previous, self._previous_end = time, line.end
            self._buffer.append(Found(time, number, line))

    def time_after(self, data: bytes, start: int) -> float:
        """The time of the last of some whole lines, the next ones, which begin at the offset `start`."""
        last = data.rfind(b"\n", 0, len(data) - 1) + 1
        record = max(self.record, last_record_time(data))
        continues = data.startswith(CONTINUATION.encode(), last) or last_record_time(data[last:]) > _UNKNOWN
        return record if continues else max(record, self.arrivals.of(start + last))

    def skip(self, data: bytes, start: int) -> float:
        """Continue after whole lines, which begin at the offset `start`. Returns the time of the last one."""
        self._previous, self._previous_end = self.time_after(data, start), start + len(data)
        self.record = max(self.record, last_record_time(data))
        self.lines.skip(self._previous_end)
        return self._previous

    @property
    def next_time(self) -> float | None:
        """The time of the next line; None if the buffer is empty."""
        return self._buffer[0].time if self._buffer else None

    def take(self, until: tuple[float, int]) -> Iterator[Found]:
        """Remove the next lines that are not newer than `until`, a time and the number of another log."""
        while self._buffer and self._buffer[0][:2] <= until:
            yield self._buffer.popleft()


class MergedLog:
    """Merges logs, which are numbered in their order.

    Logs that still grow are merged as far as they have arrived. `resume` continues with what has arrived since.

    With `blocks`, the lines of a block come as one, with line ends in its text, if no line of another log belongs
    between them. This takes a fraction of the time if one worker writes more than the others.
    """

    def __init__(
        self,
        streams: Streams,
        sources: Sequence[Source],
        now: Callable[[], float] = lambda: 0.0,
        *,
        blocks: bool = False,
    ) -> None:
        self.sources = sources
        self._streams = streams
        self._now = now
        self._blocks = blocks
        self._block_bytes = max(_MIN_BLOCK_BYTES, min(_BLOCK_BYTES, _READ_BYTES // max(1, len(sources))))
        self._many_lines = max(_FEWEST_LINES, min(_MANY_LINES, _BUFFERED_LINES // max(1, len(sources))))
        self._unread = list(range(len(sources)))
        """The logs that may have more lines, but none in the buffer."""
        self._heap: list[tuple[float, int]] = []
        """The time of the next line of each log that has some in the buffer."""

    def resume(self) -> None:
        """Look for new lines again in the logs that had no more."""
        for source in self.sources:
            source.arrivals = self._streams.log_arrivals(source.key)
        self._unread = [number for number, source in enumerate(self.sources) if source.next_time is None]

    def read(self) -> list[Found] | None:
        """The next lines, which can be none if they are far away; None if there are no more."""
        found: list[Found] = []
        left = _READ_BYTES
        while len(found) < _MANY_LINES:
            while self._unread:
                if left <= 0:
                    return found
                number = self._unread.pop()
                size = self._block_bytes
                if self._blocks and not self._unread:
                    if (block := self._whole_block(number)) is not None:
                        found.append(block)
                        left -= block.line.end - block.line.start
                        self._unread.append(number)
                        continue
                    size = min(size, 2 * _LEAST_BYTES)  # A line of another log follows soon.
                source = self.sources[number]
                left -= (size := self._feed(number, size))
                if (time := source.next_time) is not None:
                    heappush(self._heap, (time, number))
                elif size:
                    self._unread.append(number)
            if not self._heap:
                return found or None
            _, number = heappop(self._heap)
            source = self.sources[number]
            found += source.take(self._heap[0] if self._heap else _NEVER)
            if (time := source.next_time) is not None:
                heappush(self._heap, (time, number))
            else:
                self._unread.append(number)
        return found

    def _whole_block(self, number: int) -> Found | None:
        """The next lines of a log as one, if they are not newer than the next line of each other log."""
        source = self.sources[number]
        lines = source.lines
        if source.end is None or lines.next >= source.end:
            return None
        chunk = self._streams.read_log(source.key, lines.start, _BLOCK_BYTES)
        block = chunk.data if chunk.data.count(b"\n") <= _MANY_LINES else chunk.data[:_MANY_LINES]
        data = block[: block.rfind(b"\n") + 1]
        if chunk.start != lines.start or not data:
            return None
        limit = self._heap[0] if self._heap else _NEVER
        if (source.time_after(data, chunk.start), number) > limit:
            data = _beginning(data, lambda part: (source.time_after(part, chunk.start), number) <= limit)
            if not data:
                return None
        time = source.skip(data, chunk.start)
        text = data[:-1].decode(errors="replace")
        if "\r" in text:
            text = text.removesuffix("\r").replace("\r\n", "\n").replace("\r", "\n")
        return Found(time, number, Line(text, chunk.start, chunk.start + len(data)))

    def _feed(self, number: int, size: int) -> int:
        """Read up to `size` bytes of a log; returns their number. At its end, includes a line without an end."""
        source = self.sources[number]
        lines = source.lines
        chunk = Chunk(lines.next, b"")
        if source.end is None or lines.next < source.end:
            chunk = self._streams.read_log(source.key, lines.next, size)
        if not chunk.data:
            if source.end is not None:
                source.add(number, lines.flush())
            return 0
        if chunk.data.count(b"\n") + chunk.data.count(b"\r") > self._many_lines:
            chunk = Chunk(chunk.start, chunk.data[: self._many_lines])
        source.fed_at = self._now()
        source.add(number, lines.feed(chunk))
        return len(chunk.data)


def _beginning(data: bytes, admits: Callable[[bytes], bool]) -> bytes:
    """The first of some whole lines that `admits` admits together, to within `_LEAST_BYTES`. It refuses all of them."""
    low, high = 0, len(data)
    while high - low > _LEAST_BYTES:
        middle = data.find(b"\n", (low + high) // 2, high - 1) + 1
        if middle == 0:
            high = (low + high) // 2
        elif admits(data[:middle]):
            low = middle
        else:
            high = middle
    return data[:low]
