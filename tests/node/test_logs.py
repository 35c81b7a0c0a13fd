"""A worker's log between the worker and the master's segments, in bounded space at both ends."""

import random
from pathlib import Path

import pytest

from rolecall.master import segments
from rolecall.node.client import MasterUnreachable
from rolecall.node.folder import Folder
from rolecall.node.logs import CHUNK_BYTES, Stream
from rolecall.node.reconcile import Key

KEEP = 4 << 20


class FakeMaster:
    """The master's side: takes chunks as its streams do, unless it is unavailable."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.unavailable = False

    async def ship(self, key: Key, stream: str, offset: int, chunk: bytes, *, cut: bool = False) -> int:
        if self.unavailable:
            raise MasterUnreachable("away")
        segments.append(self.folder, offset, chunk, KEEP, cut=cut)
        return segments.size(self.folder)


class Log:
    """A worker that writes, and the stream of its log."""

    def __init__(self, tmp_path: Path) -> None:
        folder = Folder(tmp_path / "job/1/0")
        folder.make()
        self.path = folder.path / "log.txt"
        self.master = FakeMaster(tmp_path / "master")
        self.stream = Stream(Key("job", 1, 0), "log", folder, self.path.name, keep_bytes=KEEP)
        self.written = b""
        self._random = random.Random(3)

    def write(self, size: int) -> None:
        chunk = self._random.randbytes(size)
        self.written += chunk
        with self.path.open("ab") as file:
            file.write(chunk)

    async def ship(self) -> bool:
        try:
            return await self.stream.ship(self.master)  # type: ignore[arg-type]
        except MasterUnreachable:
            return False

    async def ship_all(self) -> None:
        while await self.ship():
            pass

    @property
    def space(self) -> int:
        return self.path.stat().st_blocks * 512

    def check(self) -> list[tuple[int, int]]:
        """The parts that the master lacks; what it has must be what was written."""
        assert segments.size(self.master.folder) == len(self.written)
        gaps, offset = list[tuple[int, int]](), 0
        while (chunk := segments.read(self.master.folder, offset, 1 << 30)).data:
            assert chunk.data == self.written[chunk.start : chunk.end]
            if chunk.start != offset:
                gaps.append((offset, chunk.start))
            offset = chunk.end
        return gaps


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


async def test_what_has_been_sent_takes_no_space_here(log: Log) -> None:
    for _ in range(12):
        log.write(1 << 20)
        await log.ship_all()
        assert log.space <= 2 << 20
    (gap,) = log.check()
    assert gap[0] >= KEEP // 2


async def test_a_flood_while_the_master_is_unavailable_leaves_the_head_and_the_newest_bytes(log: Log) -> None:
    log.write(1000)
    await log.ship_all()
    log.master.unavailable = True
    for _ in range(20):
        log.write(1 << 20)
        await log.ship()
        assert log.space <= KEEP + (2 << 20)
    log.master.unavailable = False
    await log.ship_all()
    ((begin, end),) = log.check()
    assert begin == KEEP // 2
    assert len(log.written) - end >= KEEP // 4


async def test_a_master_that_lost_its_last_bytes_gets_them_again(log: Log) -> None:
    log.write(CHUNK_BYTES + 10)
    await log.ship_all()
    (only,) = segments.segments(log.master.folder)
    only.path.write_bytes(only.path.read_bytes()[:-100])
    log.write(10)
    await log.ship_all()
    assert log.check() == []


async def test_a_master_that_lost_what_is_freed_here_gets_the_rest(log: Log) -> None:
    log.write(3 << 20)
    await log.ship_all()
    for segment in segments.segments(log.master.folder):
        segment.path.unlink()
    log.write(1 << 20)
    await log.ship_all()
    ((begin, end),) = log.check()
    assert begin == 0
    assert end <= 3 << 20
