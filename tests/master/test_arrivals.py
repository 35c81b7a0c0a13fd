"""The marks of when the bytes of a log arrived."""

from array import array
from itertools import pairwise
from pathlib import Path

import pytest

from rolecall.master import arrivals
from rolecall.master.arrivals import Arrivals, read, record


def marks(folder: Path) -> list[tuple[int, float]]:
    found = read(folder)
    return list(zip(found.offsets, found.times, strict=True))


def test_marks_are_a_second_apart(tmp_path: Path) -> None:
    assert marks(tmp_path) == []
    for offset, time in ((0, 10.0), (5, 10.9), (7, 11.0), (9, 30.0), (11, 12.0)):
        record(tmp_path, offset, time)
    # The last one is of a clock that was set back.
    assert marks(tmp_path) == [(0, 10.0), (7, 11.0), (9, 30.0), (11, 12.0)]


def test_a_byte_did_not_arrive_before_its_mark() -> None:
    found = Arrivals(array("Q", [3, 7]), array("d", [10.0, 11.0]))
    assert [found.of(offset) for offset in (2, 3, 6, 7, 1000)] == [float("-inf"), 10.0, 10.0, 11.0, 11.0]
    assert Arrivals().of(5) == float("-inf")


def test_a_mark_that_was_written_in_part_is_replaced(tmp_path: Path) -> None:
    record(tmp_path, 0, 10.0)
    with (tmp_path / "arrivals").open("ab") as file:
        file.write(b"part")
    assert marks(tmp_path) == [(0, 10.0)]
    record(tmp_path, 4, 20.0)
    assert marks(tmp_path) == [(0, 10.0), (4, 20.0)]


def test_older_marks_are_thinned_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "_MAX_MARKS", 16)
    for second in range(1000):
        record(tmp_path, 10 * second, float(second))
    found = marks(tmp_path)
    assert len(found) <= 16
    assert found[0] == (0, 0.0)
    assert found[-1] == (9990, 999.0)
    gaps = [after[1] - before[1] for before, after in pairwise(found)]
    assert gaps[-4:] == [1.0] * 4
    assert gaps == sorted(gaps, reverse=True)
