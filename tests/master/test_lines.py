"""Lines of a log that is fed in chunks."""

import pytest

from rolecall.master.lines import MAX_LINE_BYTES, Line, Lines
from rolecall.master.segments import Chunk

LOG = b"one\ntwo\r\n 10%|#\r 20%|##\rlong \x0c\x1c\xe2\x80\xa8 line\n\n\xff\nrest"
TEXTS = ["one", "two", " 10%|#", " 20%|##", "long \x0c\x1c\u2028 line", "", "\ufffd", "rest"]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_the_lines_are_the_same_however_the_log_is_cut_into_chunks(size: int) -> None:
    lines, found = Lines(), list[Line]()
    for start in range(0, len(LOG), size):
        found += lines.feed(Chunk(start, LOG[start : start + size]))
    assert lines.has_rest
    found += lines.flush()
    assert [line.text for line in found] == TEXTS
    assert found[-1].end == lines.next == len(LOG)
    assert not lines.has_rest


def test_whoever_starts_behind_a_line_gets_the_next_one() -> None:
    every = Lines().feed(Chunk(0, LOG))
    for number, line in enumerate(every[:-1]):
        assert Lines(line.end).feed(Chunk(line.end, LOG[line.end :])) == every[number + 1 :]


def test_a_line_that_does_not_end_is_shown_in_parts() -> None:
    lines = Lines()
    found = lines.feed(Chunk(0, b"x" * (3 * MAX_LINE_BYTES + 5)))
    assert [(len(line.text), line.end) for line in found] == [(MAX_LINE_BYTES, MAX_LINE_BYTES * n) for n in (1, 2, 3)]
    found = lines.feed(Chunk(lines.next, b"y" * MAX_LINE_BYTES + b"\n"))
    assert [(len(line.text), line.end) for line in found] == [
        (MAX_LINE_BYTES, 4 * MAX_LINE_BYTES),
        (5, 4 * MAX_LINE_BYTES + 6),
    ]


def test_a_part_that_was_cut_is_noted_between_the_lines() -> None:
    lines = Lines()
    lines.feed(Chunk(0, b"head\nhalf a li"))
    found = lines.feed(Chunk(1000, b"tail\n"))
    assert found[0].text == "half a li"
    assert found[1].text.startswith("[986 bytes of this log were cut here")
    assert found[2] == Line("tail", 1005)
