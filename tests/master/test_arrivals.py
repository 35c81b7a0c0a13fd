"""The marks of when the bytes of a log arrived."""

from itertools import pairwise
from pathlib import Path

import pytest

from rolecall.master import arrivals
from rolecall.master.arrivals import Mark, arrival, read, record


def test_marks_are_a_second_apart(tmp_path: Path) -> None:
    assert read(tmp_path) == []
    for offset, time in ((0, 10.0), (5, 10.9), (7, 11.0), (9, 30.0), (11, 12.0)):
        record(tmp_path, offset, time)
    # The last one is of a clock that was set back.
    assert read(tmp_path) == [Mark(0, 10.0), Mark(7, 11.0), Mark(9, 30.0), Mark(11, 12.0)]


def test_a_byte_did_not_arrive_before_its_mark() -> None:
    marks = [Mark(3, 10.0), Mark(7, 11.0)]
    assert [arrival(marks, offset) for offset in (2, 3, 6, 7, 1000)] == [float("-inf"), 10.0, 10.0, 11.0, 11.0]
    assert arrival([], 5) == float("-inf")


def test_a_mark_that_was_written_in_part_is_replaced(tmp_path: Path) -> None:
    record(tmp_path, 0, 10.0)
    with (tmp_path / "arrivals").open("ab") as file:
        file.write(b"part")
    assert read(tmp_path) == [Mark(0, 10.0)]
    record(tmp_path, 4, 20.0)
    assert read(tmp_path) == [Mark(0, 10.0), Mark(4, 20.0)]


def test_older_marks_are_thinned_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "_MAX_MARKS", 16)
    for second in range(1000):
        record(tmp_path, 10 * second, float(second))
    marks = read(tmp_path)
    assert len(marks) <= 16
    assert marks[0] == Mark(0, 0.0)
    assert marks[-1] == Mark(9990, 999.0)
    gaps = [after.time - before.time for before, after in pairwise(marks)]
    assert gaps[-4:] == [1.0] * 4
    assert gaps == sorted(gaps, reverse=True)
