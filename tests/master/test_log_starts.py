# pyright: standard
"""The starts of the newest lines of a log: since a time, and a number of lines with a text."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest

from rolecall.master import log_starts, segments
from rolecall.master.clock import Clock
from rolecall.master.lines import Lines
from rolecall.master.log_filter import TextFilter, record_times
from rolecall.master.log_starts import start_of_last, start_since, starts_of_last
from rolecall.master.merged_log import Source
from rolecall.master.streams import StreamKey, Streams
from rolecall.master.user_threads import Search

_T = TypeVar("_T")
KEY = StreamKey("job", 1, 0, "log")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
OLD = b"""\
2026-01-01 11:00:00.000+00:00 ERROR old
    Traceback of the old one
printed after the old one
2026-01-01 11:59:00.000+00:00 INFO old as well
    Traceback as well
"""
NEW = b"""\
printed at an unknown time
2026-01-01 14:30:00.000+02:00 INFO new
    Traceback of the new one
"""


def stored(root: Path, *parts: bytes, log_bytes: int = 1 << 30) -> Streams:
    """Streams with a log of these parts; between them, there are gaps."""
    at = 0
    for part in parts:
        segments.append(root / "job/1/0", at, part, log_bytes, cut=True)
        at += len(part) + 100
    return Streams(root, log_bytes, Clock(monotonic=lambda: 0.0))


def found(search: Callable[..., Search[int]], streams: Streams, *given: Any) -> int:
    """The result of a search in one log."""
    return result(search(streams, KEY, *given))


def result(steps: Search[_T]) -> _T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


@pytest.mark.parametrize("block", [80, 200, 1 << 20])
def test_older_records_are_left_out_with_what_precedes_and_belongs_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(log_starts, "BLOCK", block)
    streams = stored(tmp_path, OLD + NEW)
    assert found(start_since, streams, NOON) == len(OLD)
    assert found(start_since, streams, NOON - timedelta(hours=2)) == 0
    assert found(start_since, streams, NOON + timedelta(hours=3)) == len(OLD + NEW)


def test_a_log_without_records_is_new(tmp_path: Path) -> None:
    assert found(start_since, stored(tmp_path, b"printed\n" * 9), NOON) == 0
    assert found(start_since, Streams(tmp_path / "none", 1, Clock(monotonic=lambda: 0.0)), NOON) == 0


def test_each_second_of_a_long_log_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_starts, "BLOCK", 1000)
    lines = [f"{(NOON + timedelta(seconds=n)).isoformat()} INFO {n}\nprinted\n".encode() for n in range(1000)]
    streams = stored(tmp_path, b"".join(lines[:300]), b"".join(lines[700:]))
    for number in (1, 17, 299, 702, 999):
        begin = found(start_since, streams, NOON + timedelta(seconds=number))
        # What was printed after the last older record may be new.
        assert streams.read_log(KEY, begin, 1000).data.startswith(b"printed\n" + lines[number])


def test_the_search_for_a_time_reads_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_starts, "BLOCK", 1000)
    streams = stored(tmp_path, b"".join(f"{NOON.isoformat()} INFO {n}\n".encode() for n in range(100_000)))
    read = list[int]()
    read_log = streams.read_log
    monkeypatch.setattr(streams, "read_log", lambda *given: (read.append(given[1]), read_log(*given))[1])
    assert found(start_since, streams, NOON + timedelta(hours=1)) == streams.size(KEY)
    assert len(read) < 50


def test_a_log_without_newer_records_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few records at the start, and then only what the job prints."""
    monkeypatch.setattr(log_starts, "BLOCK", 1000)
    streams = stored(tmp_path, OLD + b"printed\n" * 20_000)
    read = list[int]()
    read_log = streams.read_log
    monkeypatch.setattr(streams, "read_log", lambda *given: (read.append(given[2]), read_log(*given))[1])
    assert found(start_since, streams, NOON) == len(OLD)
    assert sum(read) < 1.2 * streams.size(KEY)


@pytest.mark.slow
def test_a_record_at_the_border_of_two_segments_is_found(tmp_path: Path) -> None:
    data = b"printed\n" + OLD + NEW
    for border in range(8, len(data)):
        root = tmp_path / str(border)
        segments.append(root / "job/1/0", 0, data[:border], 8, cut=False)
        segments.append(root / "job/1/0", border, data[border:], 8, cut=False)
        streams = Streams(root, 1 << 30, Clock(monotonic=lambda: 0.0))
        assert len(streams.log_segments(KEY)) == 2
        assert found(start_since, streams, NOON) == len(b"printed\n" + OLD)


def test_the_note_of_a_gap_is_no_line_with_the_text(tmp_path: Path) -> None:
    streams = stored(tmp_path, b"needle\n", b"other\n" * 9)
    assert found(start_of_last, streams, TextFilter(["needle"], ""), 1, 0) == 0


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (b"", 0),
        (b"2026-01-01 11:00:00,000 INFO no offset", 0),
        (b"2026-99-01 11:00:00+00:00", 0),
        (b"9999-12-31 23:59:59-12:00", 0),
        (b"a 2026-01-01 11:00:00+00:00", 0),
        (b'{"time": "2026-01-01T11:00:00+0000", "level": "INFO"}', 1),
        (b"2026-01-01 11:00:00Z a\r2026-01-01 11:00:00,123Z b", 2),
    ],
)
def test_only_records_have_times(text: bytes, count: int) -> None:
    assert len(list(record_times(text, begins_line=True))) == count


@pytest.mark.parametrize("block", [5, 60, 1 << 20])
@pytest.mark.parametrize("count", [0, 1, 3, 10, 11])
def test_the_last_lines_with_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, count: int) -> None:
    monkeypatch.setattr(log_starts, "BLOCK", block)
    lines = [b"Error %d\n" % n if n % 10 == 0 else b"line %d\n" % n for n in range(100)]
    streams = stored(tmp_path, b"".join(lines))
    wanted = TextFilter(["error"], "")
    begin = found(start_of_last, streams, wanted, count, 0)
    assert streams.read_log(KEY, begin, 1 << 20).data.count(b"Error") == min(count, 10)
    floor = len(b"".join(lines[:75]))
    assert streams.read_log(KEY, found(start_of_last, streams, wanted, count, floor), 1 << 20).data.count(
        b"Error"
    ) == min(count, 2)


def _tails(streams: Streams, keys: list[StreamKey], wanted: TextFilter, opened: list[int]) -> Any:
    def open_tail(key: StreamKey, count: int) -> Search[Source]:
        opened.append(count)
        start = yield from start_of_last(streams, key, wanted, count, 0)
        return Source(key, Lines(start, wanted), streams.log_arrivals(key), streams.size(key))

    return [partial(open_tail, key) for key in keys]


@pytest.mark.parametrize("count", [0, 1, 7, 100, 399, 1000])
@pytest.mark.parametrize("shares", [[100] * 4, [397, 1, 1, 1], [0, 0, 200, 200]])
def test_the_last_lines_of_several_logs_are_those_of_all(tmp_path: Path, count: int, shares: list[int]) -> None:
    """400 records in turns, or most of them in one log, whose last are not the last of all."""
    ranks = [rank for rank, share in enumerate(shares) for _ in range(share)]
    Random(0).shuffle(ranks)
    lines = [f"{(NOON + timedelta(seconds=n)).isoformat()} INFO {n}" for n in range(len(ranks))]
    logs = [[line for line, rank in zip(lines, ranks, strict=True) if rank == number] for number in range(4)]
    for number, log in enumerate(logs):
        segments.append(tmp_path / f"job/1/{number}", 0, "".join(f"{line}\n" for line in log).encode(), 1 << 30)
    streams, keys = Streams(tmp_path, 1 << 30, Clock()), [StreamKey("job", 1, rank, "log") for rank in range(4)]
    opened: list[int] = []
    starts = result(starts_of_last(streams, _tails(streams, keys, TextFilter(["info"], ""), opened), count))
    kept = "".join(streams.read_log(key, start, 1 << 20).data.decode() for key, start in zip(keys, starts, strict=True))
    assert sorted(kept.splitlines()) == lines[max(0, len(lines) - count) :]
    # A log can have more of the last lines than twice its share.
    if shares[0]:
        assert (len(set(opened)) > 1) == (shares[0] == 397 and count in {100, 399})
