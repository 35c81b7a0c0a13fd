"""Logs and progress on the master's volume: files that only grow, a piece at a time, each piece at its offset."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from weakref import WeakValueDictionary

from rolecall.spec.errors import NotFound

Kind = Literal["log", "progress"]
_FILES: dict[Kind, str] = {"log": "log.txt", "progress": "progress.jsonl"}
_PIECE = 1 << 20
_REMEMBERED = 1000
"""How many removed jobs are remembered: as many as calls may still be on their way for."""


@dataclass(frozen=True, slots=True)
class StreamKey:
    """One stream of one worker."""

    job: str
    attempt: int
    rank: int
    kind: Kind


class Streams:
    """The files below `root`. A piece that is there already changes nothing; one behind a gap is not written."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._locks: WeakValueDictionary[StreamKey, asyncio.Lock] = WeakValueDictionary()
        self._removed: dict[str, None] = {}

    async def append(self, key: StreamKey, offset: int, pieces: AsyncIterator[bytes]) -> int:
        """Append what is missing of the bytes that start at `offset`; return the stream's size."""
        async with self._locks.setdefault(key, asyncio.Lock()):
            async for piece in pieces:
                if key.job in self._removed:
                    raise NotFound(f"job {key.job} is deleted")
                await asyncio.to_thread(_append, self._path(key), offset, piece)
                offset += len(piece)
            return self.size(key)

    async def remove_job(self, job: str) -> None:
        """Delete all streams of a job; a piece that is on its way is refused from now on."""
        self._removed[job] = None
        while len(self._removed) > _REMEMBERED:
            self._removed.pop(next(iter(self._removed)))
        for key, lock in list(self._locks.items()):
            if key.job == job:
                async with lock:
                    pass  # Whoever is in the middle of a piece finishes it.
        with suppress(FileNotFoundError):
            await asyncio.to_thread(shutil.rmtree, self._root / job)

    def used(self, job: str) -> int:
        """Bytes of all streams of a job."""
        return sum(path.stat().st_size for path in (self._root / job).rglob("*") if path.is_file())

    def size(self, key: StreamKey) -> int:
        """The stream's size in bytes; 0 before its first piece."""
        path = self._path(key)
        return path.stat().st_size if path.exists() else 0

    def read(self, key: StreamKey, start: int = 0, *, partial: bool = False) -> bytes:
        """The lines from byte `start` on, at most about a MiB; one that is still being written only if `partial`."""
        path = self._path(key)
        if not path.exists():
            return b""
        with path.open("rb") as file:
            file.seek(start)
            piece = file.read(_PIECE)
            while b"\n" not in piece and (more := file.read(_PIECE)):
                piece += more
        return piece if partial else piece[: piece.rfind(b"\n") + 1]

    def lines(self, key: StreamKey) -> Iterator[bytes]:
        """All lines, also a last one without an end, without reading the whole file into memory."""
        path = self._path(key)
        if path.exists():
            with path.open("rb") as file:
                yield from (line.rstrip(b"\n") for line in file)

    def _path(self, key: StreamKey) -> Path:
        return self._root / key.job / str(key.attempt) / str(key.rank) / _FILES[key.kind]


def _append(path: Path, offset: int, piece: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        have = file.tell()
        if offset <= have:
            file.write(piece[have - offset :])
