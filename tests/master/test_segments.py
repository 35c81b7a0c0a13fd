"""A log in bounded space."""

import random
from itertools import pairwise
from pathlib import Path

import pytest

from rolecall.master import segments
from rolecall.master.segments import Chunk

KEEP = 1 << 16


def content(size: int) -> bytes:
    """Bytes that differ wherever an error in one chunk would show."""
    return random.Random(7).randbytes(size)


def whole(folder: Path, most: int = 1000) -> list[Chunk]:
    found: list[Chunk] = []
    while (chunk := segments.read(folder, found[-1].end if found else 0, most)).data:
        found.append(chunk)
    return found


@pytest.mark.parametrize("size", [0, 1, KEEP // 2, KEEP])
def test_a_short_log_stays_whole(tmp_path: Path, size: int) -> None:
    log = content(size)
    for offset in range(0, size, 999):
        segments.append(tmp_path, offset, log[offset : offset + 999], KEEP)
    assert b"".join(chunk.data for chunk in whole(tmp_path)) == log
    assert segments.size(tmp_path) == size


def test_a_long_log_keeps_its_head_and_its_tail(tmp_path: Path) -> None:
    log = content(20 * KEEP)
    for offset in range(0, len(log), 777):
        segments.append(tmp_path, offset, log[offset : offset + 777], KEEP)
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= KEEP * 5 // 4
    chunks = whole(tmp_path)
    assert all(log[chunk.start : chunk.end] == chunk.data for chunk in chunks)
    gaps = [(one.end, other.start) for one, other in pairwise(chunks) if other.start != one.end]
    ((begin, end),) = gaps
    assert begin >= KEEP // 2
    assert len(log) - end >= KEEP // 4
    assert segments.size(tmp_path) == len(log)


def test_what_is_there_already_and_what_lies_behind_a_gap_changes_nothing(tmp_path: Path) -> None:
    segments.append(tmp_path, 0, b"abcd", KEEP)
    segments.append(tmp_path, 1, b"xx", KEEP)
    segments.append(tmp_path, 2, b"cdef", KEEP)
    segments.append(tmp_path, 9, b"lost", KEEP)
    assert whole(tmp_path) == [Chunk(0, b"abcdef")]


def test_a_gap_may_be_left_where_the_sender_has_nothing_any_more(tmp_path: Path) -> None:
    segments.append(tmp_path, 0, b"head", KEEP)
    segments.append(tmp_path, 100, b"tail", KEEP, cut=True)
    segments.append(tmp_path, 104, b"!", KEEP)
    assert whole(tmp_path) == [Chunk(0, b"head"), Chunk(100, b"tail!")]
    assert segments.read(tmp_path, 50, 2) == Chunk(100, b"ta")


def test_a_log_of_release_0_1_is_its_own_head(tmp_path: Path) -> None:
    old = content(3 * KEEP)
    (tmp_path / "log.txt").write_bytes(old)
    for number in range(200):
        segments.append(tmp_path, len(old) + number * 1000, bytes(1000), KEEP)
    chunks = whole(tmp_path, 10**9)
    assert chunks[0] == Chunk(0, old)
    assert sum(len(chunk.data) for chunk in chunks[1:]) <= KEEP * 3 // 4
