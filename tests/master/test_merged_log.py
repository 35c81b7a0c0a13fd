"""Logs of several workers as one log."""

from array import array
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolecall.master import merged_log, segments
from rolecall.master.arrivals import Arrivals
from rolecall.master.clock import Clock
from rolecall.master.lines import Lines
from rolecall.master.log_filter import TextFilter
from rolecall.master.merged_log import Found, MergedLog, Source
from rolecall.master.streams import StreamKey, Streams

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(second: float, text: str = "") -> str:
    """A record of this second after noon."""
    return f"{(NOON + timedelta(seconds=second)).isoformat(' ', 'milliseconds')} INFO {text or second}"


def key_of(rank: int) -> StreamKey:
    return StreamKey("job", 1, rank, "log")


def marks(*given: tuple[int, float]) -> Arrivals:
    """The times at which the bytes from some offsets arrived."""
    return Arrivals(array("Q", [offset for offset, _ in given]), array("d", [time for _, time in given]))


def store(root: Path, logs: Sequence[Sequence[str]]) -> Streams:
    for rank, lines in enumerate(logs):
        segments.append(root / f"job/1/{rank}", 0, "".join(f"{line}\n" for line in lines).encode(), 1 << 30)
    return Streams(root, 1 << 30, Clock())


def open_logs(streams: Streams, count: int, arrivals: Sequence[Arrivals] = (), text: str = "") -> MergedLog:
    """All of `count` logs."""
    wanted = TextFilter([text], "") if text else None
    return MergedLog(
        streams,
        [
            Source(key_of(rank), Lines(0, wanted), arrivals[rank] if arrivals else marks(), streams.size(key_of(rank)))
            for rank in range(count)
        ],
    )


def texts(log: MergedLog) -> Iterator[str]:
    """The lines, each with the number of its log."""
    while (found := log.read()) is not None:
        for one in found:
            yield f"{one.number} {one.line.text}"


def merged(root: Path, logs: Sequence[Sequence[str]], arrivals: Sequence[Arrivals] = (), text: str = "") -> list[str]:
    return list(texts(open_logs(store(root, logs), len(logs), arrivals, text)))


def test_records_are_in_the_order_of_time(tmp_path: Path) -> None:
    logs = [[at(1), at(4)], [at(0), at(1), at(3)], [], [at(2)]]
    assert merged(tmp_path, logs) == [
        f"1 {at(0)}",
        f"0 {at(1)}",
        f"1 {at(1)}",
        f"3 {at(2)}",
        f"1 {at(3)}",
        f"0 {at(4)}",
    ]


def test_times_of_other_zones_and_of_json_are_compared(tmp_path: Path) -> None:
    later = '{"time": "2026-01-01T12:00:01.500+00:00", "level": "INFO"}'
    logs = [["2026-01-01 14:00:01,000+02:00 INFO a", later], ["2026-01-01T12:00:01.250Z INFO b"]]
    assert merged(tmp_path, logs) == [f"0 {logs[0][0]}", f"1 {logs[1][0]}", f"0 {later}"]


def test_a_traceback_stays_with_its_record(tmp_path: Path) -> None:
    logs = [[at(1), "    Traceback", "    ValueError: x", at(3)], [at(0), at(2)]]
    # The bytes of the traceback's end arrived late, which must not separate it.
    arrivals = [marks((0, 0.0), (len(at(1)) + 1 + 14, NOON.timestamp() + 2.5)), marks()]
    assert merged(tmp_path, logs, arrivals) == [
        f"1 {at(0)}",
        f"0 {at(1)}",
        "0     Traceback",
        "0     ValueError: x",
        f"1 {at(2)}",
        f"0 {at(3)}",
    ]


def test_printed_lines_are_as_old_as_the_bytes_that_arrived_with_them(tmp_path: Path) -> None:
    noon = NOON.timestamp()
    logs = [[at(0), "printed early", "printed late"], [at(1), at(3)]]
    late = len(at(0)) + 1 + len("printed early") + 1
    arrivals = [marks((0, noon), (late, noon + 2)), marks()]
    assert merged(tmp_path, logs, arrivals) == [
        f"0 {at(0)}",
        "0 printed early",
        f"1 {at(1)}",
        "0 printed late",
        f"1 {at(3)}",
    ]
    # A selection hides the record before a line, but not when the line arrived.
    assert merged(tmp_path / "again", logs, arrivals, text="3.000")[0].startswith("1 ")
    assert merged(
        tmp_path / "twice", [logs[0], ["printed 1", *logs[1]]], [arrivals[0], marks((0, noon + 1))], "printed"
    ) == [
        "0 printed early",
        "1 printed 1",
        "0 printed late",
    ]


def test_the_order_of_a_worker_never_changes(tmp_path: Path) -> None:
    """Its clock was set back, and it printed something that looks like a record of the future."""
    logs = [[at(5), at(2), at(3)], [at(4)], ["2999-01-01 00:00:00Z forged", at(1)]]
    found = merged(tmp_path, logs)
    assert found == [f"1 {at(4)}", f"0 {at(5)}", f"0 {at(2)}", f"0 {at(3)}", f"2 {logs[2][0]}", f"2 {at(1)}"]


def test_a_log_continues_with_what_has_arrived_since(tmp_path: Path) -> None:
    streams = store(tmp_path, [[at(1)], [at(2)]])
    log = MergedLog(streams, [Source(key_of(rank), Lines()) for rank in range(2)])
    assert list(texts(log)) == [f"0 {at(1)}", f"1 {at(2)}"]
    size = streams.size(key_of(0))
    segments.append(tmp_path / "job/1/0", size, f"{at(3)}\nno end".encode(), 1 << 30)
    assert list(texts(log)) == []
    log.resume()
    assert list(texts(log)) == [f"0 {at(3)}"]
    assert log.sources[0].lines.has_rest


def test_a_log_with_much_to_read_does_not_hide_what_arrives_in_others(tmp_path: Path) -> None:
    streams = store(tmp_path, [[at(second) for second in range(20_000)], [at(0)]])
    log = MergedLog(streams, [Source(key_of(rank), Lines()) for rank in range(2)])
    assert log.read()
    segments.append(tmp_path / "job/1/1", streams.size(key_of(1)), f"{at(1)}\n".encode(), 1 << 30)
    log.resume()
    assert f"1 {at(1)}" in [f"{one.number} {one.line.text}" for one in log.read() or ()]
    assert len(list(texts(log))) < 20_000


def test_each_read_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merged_log, "_READ_BYTES", 1 << 12)
    streams = store(tmp_path, [["x" * 99] * 1000, [""] * 100_000, ["needle"]])
    log, reads = open_logs(streams, 3), 0
    while (found := log.read()) is not None:
        reads += 1
        assert sum(len(one.line.text) + 1 for one in found) <= 1 << 14
    assert reads > 10
    # A search that finds nothing in a block still returns.
    log, reads = open_logs(streams, 3, text="needle"), 0
    while log.read() is not None:
        reads += 1
    assert reads > 10


_LINES = st.one_of(
    st.integers(0, 50).map(at), st.just("    continued"), st.text("ab", max_size=3).map(lambda text: f"printed {text}")
)


@given(logs=st.lists(st.lists(_LINES, max_size=12), min_size=1, max_size=4), block=st.integers(1, 200))
def test_nothing_is_lost_repeated_or_out_of_order(logs: list[list[str]], block: int) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(merged_log, "_MIN_BLOCK_BYTES", 1)
        patch.setattr(merged_log, "_BLOCK_BYTES", block)
        found = merged(Path(folder), logs)
    for rank, lines in enumerate(logs):
        assert [text[2:] for text in found if text.startswith(f"{rank} ")] == lines
    assert len(found) == sum(map(len, logs))


@given(seconds=st.lists(st.lists(st.integers(0, 30).map(float)).map(sorted), min_size=1, max_size=4))
def test_ascending_records_are_sorted(seconds: list[list[float]]) -> None:
    with TemporaryDirectory() as folder:
        found = merged(Path(folder), [[at(second) for second in log] for log in seconds])
    assert found == [text for _, text in sorted((at(s), f"{n} {at(s)}") for n, log in enumerate(seconds) for s in log)]


@given(logs=st.lists(st.lists(_LINES, max_size=40), min_size=1, max_size=4), block=st.integers(1, 300))
@pytest.mark.slow
def test_whole_blocks_have_the_same_lines(logs: list[list[str]], block: int) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(merged_log, "_MIN_BLOCK_BYTES", 1)
        patch.setattr(merged_log, "_BLOCK_BYTES", block)
        streams = store(Path(folder), logs)
        found = [(one.number, line) for one in _all(streams, len(logs)) for line in one.line.text.split("\n")]
    for rank, lines in enumerate(logs):
        assert [line for number, line in found if number == rank] == lines


@given(seconds=st.lists(st.lists(st.integers(0, 30).map(float), max_size=40).map(sorted), min_size=1, max_size=4))
def test_whole_blocks_are_sorted(seconds: list[list[float]]) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(merged_log, "_BLOCK_BYTES", 200)
        patch.setattr(merged_log, "_LEAST_BYTES", 50)
        streams = store(Path(folder), [[at(second) for second in log] for log in seconds])
        lines = [line for one in _all(streams, len(seconds)) for line in one.line.text.split("\n")]
    assert lines == sorted(at(second) for log in seconds for second in log)


def _all(streams: Streams, count: int) -> list[Found]:
    """All lines of `count` logs, in whole blocks where possible."""
    sources = [Source(key_of(rank), Lines(), marks(), streams.size(key_of(rank))) for rank in range(count)]
    log, every = MergedLog(streams, sources, blocks=True), list[Found]()
    while (found := log.read()) is not None:
        every += found
    return every


def test_a_log_between_the_lines_of_another_comes_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merged_log, "_BLOCK_BYTES", 1000)
    monkeypatch.setattr(merged_log, "_LEAST_BYTES", 100)
    busy = [at(second, "10%\r20%") for second in range(1, 900)]
    texts = [one.line.text for one in _all(store(tmp_path, [[at(0), at(450.5), at(1000)], busy]), 2)]
    assert sum(text.count("\n") for text in texts) > 1500
    lines = "\n".join(texts).split("\n")
    assert lines.count("20%") == len(busy), "a carriage return ends a line"
    assert lines.index(at(450.5)) == 1 + 2 * 450
    assert texts[-1] == at(1000)


def test_a_block_ends_when_its_last_line_arrived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merged_log, "_BLOCK_BYTES", 40)
    streams = store(tmp_path, [[at(0), at(1), "printed late"], [at(0.5), at(2)]])
    late = marks((0, NOON.timestamp()), (len(at(0)) + len(at(1)) + 2, NOON.timestamp() + 5))
    for blocks in (False, True):
        sources = [
            Source(key_of(rank), Lines(), (late, marks())[rank], streams.size(key_of(rank))) for rank in range(2)
        ]
        log, found = MergedLog(streams, sources, blocks=blocks), list[str]()
        while (lines := log.read()) is not None:
            found += [line for one in lines for line in one.line.text.split("\n")]
        assert found == [at(0), at(0.5), at(1), at(2), "printed late"]


def test_a_block_has_a_bounded_number_of_lines(tmp_path: Path) -> None:
    streams = store(tmp_path, [[""] * 100_000, [at(0)]])
    assert max(one.line.text.count("\n") for one in _all(streams, 2)) < 4096
