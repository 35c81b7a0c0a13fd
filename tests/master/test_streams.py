"""Logs and progress on disk: each chunk at its offset, twice or late, and what is still expected."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rolecall.master.progress_lines import parse
from rolecall.master.streams import StreamKey, Streams
from rolecall.spec.errors import NotFound

from .harness import ManualClock

LOG, PROGRESS = StreamKey("toy-1", 1, 0, "log"), StreamKey("toy-1", 1, 0, "progress")


async def chunks(*bodies: bytes) -> AsyncIterator[bytes]:
    for body in bodies:
        yield body


async def append(streams: Streams, key: StreamKey, offset: int, *bodies: bytes) -> int:
    return await streams.append(key, offset, chunks(*bodies))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def streams(tmp_path: Path, clock: ManualClock) -> Streams:
    return Streams(tmp_path, 1 << 20, clock)


@pytest.mark.parametrize(
    ("bodies", "starts"),
    [
        ((b"a\nb\r\nc\rd",), [0, 2, 5, 7]),
        ((b"a\r\rb\r\r\n",), [0, 2, 3, 5]),
        ((b"a\r", b"\nb\r", b"c\r", b"\n"), [0, 3, 5]),
        ((b"a\r", b"\n\n", b"\r"), [0, 3, 4]),
    ],
)
async def test_carriage_returns_end_the_last_lines_of_a_log_too(
    tmp_path: Path, clock: ManualClock, bodies: tuple[bytes, ...], starts: list[int]
) -> None:
    streams, offset = Streams(tmp_path, 8, clock), 0  # Each chunk becomes a segment of its own.
    for body in bodies:
        offset = await append(streams, LOG, offset, body)
    assert [streams.tail_start(LOG, count) for count in range(len(starts) + 2)] == [offset, *reversed(starts), 0]


@pytest.mark.parametrize("key", [LOG, PROGRESS])
async def test_a_chunk_that_is_there_changes_nothing_and_one_behind_a_gap_is_not_written(
    streams: Streams, key: StreamKey
) -> None:
    assert streams.size(key) == 0
    assert await append(streams, key, 0, b"one\n", b"two\n") == 8
    assert await append(streams, key, 0, b"one\n") == 8
    assert await append(streams, key, 4, b"two\nthree\n") == 14
    assert await append(streams, key, 100, b"late\n") == 14
    assert await append(streams, key, 14) == 14, "no chunk at all"


async def test_only_whole_lines_of_progress_are_read(streams: Streams) -> None:
    assert list(streams.lines(PROGRESS)) == []
    await append(streams, PROGRESS, 0, b'{"a": 1}\n{"b"')
    assert parse(PROGRESS, streams.lines(PROGRESS), 0).end == 9
    await append(streams, PROGRESS, 13, b": 2}\n")
    assert list(streams.lines(PROGRESS, 9)) == [b'{"b": 2}\n']
    assert parse(PROGRESS, streams.lines(PROGRESS, 9), 9).end == 18
    assert list(streams.lines(PROGRESS, 18)) == []


async def test_a_line_without_an_end_that_fills_a_chunk_is_skipped(streams: Streams) -> None:
    await append(streams, PROGRESS, 0, b"x" * (1 << 20), b"y\n{}\n")
    chunk, *rest = streams.lines(PROGRESS)
    assert len(chunk) == 1 << 20
    assert b"".join(rest) == b"y\n{}\n"
    assert parse(PROGRESS, streams.lines(PROGRESS), 0).end == 1 << 20


async def test_all_lines_are_given_also_a_last_one_without_an_end(streams: Streams) -> None:
    lines = [b'{"kind":"step","at":%d}\n' % second for second in (0, 1)]
    await append(streams, PROGRESS, 0, *lines, b"thr")
    assert list(streams.lines(PROGRESS)) == [*lines, b"thr"]
    assert list(streams.lines(StreamKey("toy-2", 1, 0, "progress"))) == []


async def test_lines_that_are_too_short_for_progress_come_together(streams: Streams) -> None:
    line = b'{"kind":"step","at":0}\n'
    await append(streams, PROGRESS, 0, line, b"\nshort\n" * 100_000, line, b"\n\n", b"end")
    first, *short, last, rest, end = streams.lines(PROGRESS)
    assert (first, last, rest, end) == (line, line, b"\n\n", b"end")
    assert b"".join(short) == b"\nshort\n" * 100_000
    assert len(short) < 100


async def test_a_log_is_complete_when_the_expected_bytes_are_there_or_it_took_too_long(
    streams: Streams, clock: ManualClock
) -> None:
    assert await streams.is_complete(LOG), "nothing is expected"
    streams.expect(LOG, 8)
    await append(streams, LOG, 0, b"one\n")
    assert not await streams.is_complete(LOG)
    await append(streams, LOG, 4, b"two\n")
    assert await streams.is_complete(LOG)
    streams.expect(LOG, 100)
    clock.advance(59)
    assert not await streams.is_complete(LOG)
    clock.advance(2)
    assert await streams.is_complete(LOG)


async def test_a_removed_job_leaves_nothing_and_takes_no_more(streams: Streams, tmp_path: Path) -> None:
    await append(streams, LOG, 0, b"one\n")
    assert streams.used("toy-1") == 4 + 16, "the log, and when it arrived"
    await streams.remove_job("toy-1")
    assert streams.used("toy-1") == 0
    with pytest.raises(NotFound, match="job toy-1 is deleted"):
        await append(streams, LOG, 0, b"one\n")
    await streams.remove_job("toy-1")
    assert not (tmp_path / "toy-1").exists()
