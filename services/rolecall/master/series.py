"""The step series of workers, thinned for charts."""

import asyncio
import math
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice, takewhile
from typing import Any, Generic, Self, TypeVar
from weakref import WeakValueDictionary

from rolecall.master.progress_lines import is_incomplete, plotted, point
from rolecall.master.series_names import SeriesNames
from rolecall.master.streams import StreamKey, Streams
from rolecall.master.user_threads import UserThreads

_ENDING = 1000
"""The number of lines at the end of a stream among which its last step is."""
_CHUNK = 200
"""The number of lines that are thinned at a time, in two thirds of the time that they take one by one."""
_MOST_BYTES = 64 << 20
"""A chart that is read again finds its series in memory; this limit bounds all of them."""
_SERIES_OVERHEAD = 64 << 10
"""Bytes that count for each series besides its lines, so that there are at most about 1,000."""
_LINE_OVERHEAD = 150
"""About the bytes that Python needs to keep a line, besides its text."""
_STREAMS_AT_ONCE = 20
"""The number of streams whose names one call of a thread reads: each call takes as long as a stream without news."""
_MOST_NAMES = 200_000
"""The maximum of the sizes of the names of all streams."""

_K = TypeVar("_K")
_V = TypeVar("_V")


class _Recent(Generic[_K, _V]):
    """The values that were kept last, up to a total size."""

    def __init__(self, most: int) -> None:
        self._most, self._size = most, 0
        self._kept = OrderedDict[_K, tuple[_V, int]]()

    def take(self, key: _K) -> _V | None:
        """Remove and return a value."""
        value, size = self._kept.pop(key, (None, 0))
        self._size -= size
        return value

    def keep(self, key: _K, value: _V, size: int) -> None:
        """Keep a value that was taken, or is new. Replaces another one."""
        self.take(key)
        self._kept[key] = (value, size)
        self._size += size
        while self._size > self._most:
            _, (_, dropped) = self._kept.popitem(last=False)
            self._size -= dropped


class SeriesBook:
    """The step series of all jobs.

    A chart asks for the same series every few seconds. So the book remembers what it found in the streams that were
    asked for recently, in bounded memory, and reads only what is new. It reads one stream of a job at a time for each
    user.
    """

    def __init__(self, streams: Streams, threads: UserThreads) -> None:
        self._streams, self._threads = streams, threads
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._names = _Recent[StreamKey, SeriesNames](_MOST_NAMES)
        self._series = _Recent[tuple[StreamKey, int], StreamSeries](_MOST_BYTES)

    async def of_stream(self, user: str, key: StreamKey, max_points: int, max_bytes: int) -> list[dict[str, Any]]:
        """The steps of a stream (see `StreamSeries`), for a user."""
        async with self._lock_of(user, key):
            # Taken out of the cache while it changes: a call that is cancelled leaves its thread behind.
            one = self._series.take((key, max_points)) or StreamSeries(max_points)
            points = await self._threads.run(user, lambda: one.feed(self._lines(key, one.end)).points(max_bytes))
            self._series.keep((key, max_points), one, _SERIES_OVERHEAD + one.memory)
            return points

    async def lowest_ranks(self, user: str, keys: Iterable[StreamKey]) -> list[StreamKey]:
        """Those of a job's streams that have a value which no lower rank of their attempt reported, for a user."""
        found, known = list[StreamKey](), defaultdict[int, set[str]](set)
        ordered = sorted(keys, key=lambda key: (key.attempt, key.rank))
        for start in range(0, len(ordered), _STREAMS_AT_ONCE):
            for key, names in (await self._names_in(user, ordered[start : start + _STREAMS_AT_ONCE])).items():
                if not names <= known[key.attempt]:
                    known[key.attempt] |= names
                    found.append(key)
        return found

    def _lock_of(self, user: str, key: StreamKey) -> asyncio.Lock:
        """Not one for all users: it is held while its user waits for a thread."""
        return self._locks.setdefault((user, key.job), asyncio.Lock())

    async def _names_in(self, user: str, keys: Sequence[StreamKey]) -> dict[StreamKey, set[str]]:
        """The names in streams of one job."""
        async with self._lock_of(user, keys[0]):
            known = {key: self._names.take(key) for key in keys}
            found = await self._threads.run(user, self._read_names, known)
            for key, one in found.items():
                self._names.keep(key, one, one.size)
            return {key: one.names for key, one in found.items()}

    def _read_names(self, known: Mapping[StreamKey, SeriesNames | None]) -> dict[StreamKey, SeriesNames]:
        found = {key: one or SeriesNames(self._streams, key) for key, one in known.items()}
        for key, one in found.items():
            one.feed(self._lines(key, one.end))
        return found

    def _lines(self, key: StreamKey, start: int) -> Iterator[bytes]:
        return takewhile(lambda raw: not is_incomplete(raw), self._streams.lines(key, start))


class StreamSeries:
    """The steps of one worker's progress stream, thinned evenly to about `max_points`; it grows with the stream.

    Lines with equally many fields are thinned together, so that values that few lines have, such as validation scores,
    are not lost among the others. Only the remaining lines are parsed, because a stream can have 100,000 of them.
    """

    def __init__(self, max_points: int) -> None:
        self.end = 0
        """The offset of the next line."""
        self.memory = 0
        """About the number of bytes that it takes."""
        self._groups = defaultdict[int, _Thinned](lambda: _Thinned(max_points))
        self._ending = deque[tuple[int, bytes]](maxlen=_ENDING)

    def feed(self, lines: Iterable[bytes]) -> Self:
        rest = iter(lines)
        while chunk := list(islice(rest, _CHUNK)):
            *places, self.end = accumulate(map(len, chunk), initial=self.end)
            alike = defaultdict[int, list[tuple[int, bytes]]](list)
            for placed in zip(places, chunk, strict=True):
                alike[placed[1].count(b'":')].append(placed)
                self._ending.append(placed)
            for fields, added in alike.items():
                self._groups[fields].extend(added)
        self.memory = sum(group.memory for group in self._groups.values()) + _memory_of(self._ending)
        return self

    def points(self, max_bytes: int) -> list[dict[str, Any]]:
        kept = self._kept()
        if (size := sum(map(len, kept.values()))) > max_bytes:
            kept = self._kept(math.ceil(size / max_bytes))
        last = next(((place, raw) for place, raw in reversed(self._ending) if any(plotted([raw]))), None)
        kept |= [last] if last is not None else []
        return [point(line) for line in plotted(raw for _, raw in sorted(kept.items()))]

    def _kept(self, share: int = 1) -> dict[int, bytes]:
        return {place: raw for group in self._groups.values() for place, raw in group.result(share)}


class _Thinned:
    """Every n-th of the added lines with their places, where n grows with their number."""

    def __init__(self, most: int) -> None:
        self._most, self._kept = most, list[tuple[int, bytes]]()
        self._count, self._stride = 0, 1

    def extend(self, added: list[tuple[int, bytes]]) -> None:
        self._kept += added[-self._count % self._stride :: self._stride]
        self._count += len(added)
        while len(self._kept) >= 4 * self._most:
            self._kept, self._stride = self._kept[::2], 2 * self._stride

    @property
    def memory(self) -> int:
        return _memory_of(self._kept)

    def result(self, share: int) -> list[tuple[int, bytes]]:
        """About `most / share` of the lines, the last kept one among them."""
        thin = share * max(1, math.ceil(len(self._kept) / self._most))
        return self._kept[(len(self._kept) - 1) % thin :: thin]


def _memory_of(lines: Iterable[tuple[int, bytes]]) -> int:
    return sum(len(raw) + _LINE_OVERHEAD for _, raw in lines)
