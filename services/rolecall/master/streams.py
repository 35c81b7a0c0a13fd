"""Logs, progress and last timelines of workers on the master's volume. They arrive in chunks, each at its offset."""

import asyncio
import io
import json
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from weakref import WeakValueDictionary

from rolecall.master import arrivals, segments
from rolecall.master.arrivals import Arrivals
from rolecall.master.clock import Clock
from rolecall.master.segments import Chunk
from rolecall.master.space import bytes_below
from rolecall.spec.errors import NotFound
from rolecall.spec.timeline import WINDOW_BYTES

Kind = Literal["log", "progress", "timeline"]
_FILES: dict[Kind, str] = {"progress": "progress.jsonl", "timeline": "timeline.json"}
_NAMES_FILE = "names.json"
_SHORT_LINES = re.compile(rb"(?:[^\n]{0,21}\n)+")
"""Lines that are too short for `{"kind":"step","at":0}`. One at a time, 16 MiB of them would take minutes."""
_READ_BYTES = 64 << 10
MAX_LINE_BYTES = 1 << 20
"""Progress lines are shorter. The result of `preflight` has findings for each pair of nodes."""
_TAIL_BYTES = 8 << 20
"""The maximum size of the last lines of a log."""
_REST_S = 60.0
"""The time to wait for the rest of the log of an ended worker."""
_REMEMBERED = 1000
"""The number of removed jobs that are remembered, because calls for them can still arrive."""


@dataclass(frozen=True, slots=True)
class StreamKey:
    """One stream of one worker."""

    job: str
    attempt: int
    rank: int
    kind: Kind


class Streams:
    """The files below `root`. A chunk that is stored already changes nothing; one after a gap is not written.

    Each log keeps `log_bytes` (see `segments`).
    """

    def __init__(self, root: Path, log_bytes: int, clock: Clock) -> None:
        self._root = root
        self._log_bytes = log_bytes
        self._clock = clock
        self._locks: WeakValueDictionary[StreamKey, asyncio.Lock] = WeakValueDictionary()
        self._expected: dict[StreamKey, tuple[int, float]] = {}
        self._removed: dict[str, None] = {}

    async def append(self, key: StreamKey, offset: int, chunks: AsyncIterator[bytes], *, cut: bool = False) -> int:
        """Append the new part of the bytes that start at `offset`. Returns the stream's size.

        `cut` says that the bytes before `offset` are lost, so the log can have a gap there.
        """
        async with self._locks.setdefault(key, asyncio.Lock()):
            size = None
            async for chunk in chunks:
                if key.job in self._removed:
                    raise NotFound(f"job {key.job} is deleted")
                size = await asyncio.to_thread(self._append, key, offset, chunk, cut)
                offset += len(chunk)
            return await asyncio.to_thread(self.size, key) if size is None else size

    async def remove_job(self, job: str) -> None:
        """Delete all streams of a job, and reject later chunks."""
        self._removed[job] = None
        while len(self._removed) > _REMEMBERED:
            self._removed.pop(next(iter(self._removed)))
        for key, lock in list(self._locks.items()):
            if key.job == job:
                async with lock:
                    pass  # Wait for a chunk that is being written.
        with suppress(FileNotFoundError):
            await asyncio.to_thread(shutil.rmtree, self._root / job)

    def used(self, job: str) -> int:
        return bytes_below(self._root / job)

    def size(self, key: StreamKey) -> int:
        """The stream's size in bytes, including gaps; 0 before its first chunk. Blocks."""
        if key.kind == "log":
            return segments.size(self._folder(key))
        try:
            return self._file(key).stat().st_size
        except FileNotFoundError:
            return 0

    def expect(self, key: StreamKey, size: int) -> None:
        """Record the final size of a stream whose worker has ended."""
        now = self._clock.monotonic()
        self._expected = {one: (size, until) for one, (size, until) in self._expected.items() if until > now}
        self._expected[key] = (size, now + _REST_S)

    async def is_complete(self, key: StreamKey) -> bool:
        """Return whether a stream has its final size, or the wait for it is over."""
        size, until = self._expected.get(key, (0, 0.0))
        return self._clock.monotonic() > until or await asyncio.to_thread(self.size, key) >= size

    def lines(self, key: StreamKey, start: int = 0) -> Iterator[bytes]:
        """The lines of a progress stream from byte `start`, with their ends. Reads one at a time. Blocks.

        The last line can be incomplete. A line longer than `MAX_LINE_BYTES` comes in chunks of this size. Lines that
        are too short for progress come together.
        """
        path = self._file(key)
        if path.exists():
            with io.BufferedReader(path.open("rb", buffering=0), _READ_BYTES) as file:
                file.seek(start)
                while chunk := file.readline(MAX_LINE_BYTES):
                    if chunk.endswith(b"\n") and _SHORT_LINES.fullmatch(chunk):
                        more = _SHORT_LINES.match(file.peek())
                        chunk += file.read(more.end()) if more else b""
                    yield chunk

    def progress_streams(self, job: str, attempt: int) -> list[StreamKey]:
        """The progress streams of an attempt that have begun. Blocks."""
        files = (self._root / job / str(attempt)).glob(f"*/{_FILES['progress']}")
        return [StreamKey(job, attempt, int(file.parent.name), "progress") for file in files]

    def saved_names(self, key: StreamKey) -> tuple[int, set[str]]:
        """The offset up to which the names of a progress stream's values are saved, and the names. Blocks."""
        try:
            end, names = json.loads((self._folder(key) / _NAMES_FILE).read_bytes())
        except (FileNotFoundError, ValueError):  # A machine that stops can leave a file without its content.
            return 0, set()
        return end, set(names)

    def save_names(self, key: StreamKey, end: int, names: set[str]) -> None:
        """Replace what `saved_names` returns. Blocks."""
        path = self._folder(key) / _NAMES_FILE
        written = path.with_suffix(".new")
        with suppress(FileNotFoundError):  # The job has been deleted.
            written.write_text(json.dumps([end, sorted(names)]), encoding="ascii")
            written.replace(path)

    def read_timeline(self, key: StreamKey) -> bytes:
        """The window that an ended worker left; empty if there is none. Blocks."""
        try:
            with self._file(key).open("rb") as file:
                return file.read(WINDOW_BYTES)
        except FileNotFoundError:
            return b""

    def read_log(self, key: StreamKey, start: int, max_bytes: int) -> Chunk:
        """Up to `max_bytes` bytes of a log from `start`, or from the end of a gap; empty at the end of the log."""
        return segments.read(self._folder(key), start, max_bytes)

    def log_arrivals(self, key: StreamKey) -> Arrivals:
        """The times at which the parts of a log arrived. Blocks."""
        return arrivals.read(self._folder(key))

    def log_segments(self, key: StreamKey) -> list[tuple[int, int]]:
        """The begins and ends of the kept parts of a log, in order. Between them, there can be gaps. Blocks."""
        return [(one.start, one.end) for one in segments.segments(self._folder(key))]

    def tail_start(self, key: StreamKey, lines: int) -> int:
        """The offset at which the last `lines` lines of a log begin, or fewer if these have more than 8 MiB. Blocks."""
        size, window = self.size(key), _TAIL_BYTES // 128
        while True:
            begin = max(0, size - window)
            found = _start_of_last(self._chunks(key, begin), lines, size)
            if found is not None or begin == 0 or window == _TAIL_BYTES:
                return begin if found is None else found
            window = min(8 * window, _TAIL_BYTES)

    def _chunks(self, key: StreamKey, start: int) -> list[Chunk]:
        chunks = list[Chunk]()
        while (chunk := self.read_log(key, start, _TAIL_BYTES)).data:
            chunks.append(chunk)
            start = chunk.end
        return chunks

    def _append(self, key: StreamKey, offset: int, chunk: bytes, cut: bool) -> int:
        if key.kind == "log":
            folder = self._folder(key)
            before = segments.size(folder)
            size = segments.append(folder, offset, chunk, self._log_bytes, cut=cut)
            if size > before:
                arrivals.record(folder, before, self._clock.now().timestamp())
            return size
        path = self._file(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            have = file.tell()
            if offset <= have:
                file.write(chunk[have - offset :])
            return file.tell()

    def _folder(self, key: StreamKey) -> Path:
        return self._root / key.job / str(key.attempt) / str(key.rank)

    def _file(self, key: StreamKey) -> Path:
        return self._folder(key) / _FILES[key.kind]


def _start_of_last(chunks: list[Chunk], lines: int, end: int) -> int | None:
    """The offset at which the last `lines` lines begin in a log that ends at `end`; None if there are fewer.

    As in `Lines`, a carriage return ends a line as well.
    """
    if lines == 0:
        return end
    following = Chunk(end, b"")
    for chunk in reversed(chunks):
        # Each end becomes one line feed, at its last byte.
        data = chunk.data.replace(b"\r\n", b" \n").replace(b"\r", b"\n")
        place = len(data)
        if chunk is chunks[-1]:
            place -= data.endswith(b"\n")  # The end of the last line starts no further line.
        elif chunk.end == following.start and following.data.startswith(b"\n"):
            place -= chunk.data.endswith(b"\r")
        while (place := data.rfind(b"\n", 0, place)) >= 0:
            lines -= 1
            if lines == 0:
                return chunk.start + place + 1
        following = chunk
    return None
