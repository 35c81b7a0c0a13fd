"""Lines of a log that is fed in chunks."""

import pytest

from rolecall.master.lines import MAX_LINE_BYTES, Line, Lines
from rolecall.master.log_filter import TextFilter
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
    assert [line.start for line in found] == [0, *(line.end for line in found[:-1])]
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
    assert found[2] == Line("tail", 1000, 1005)


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["O"], ["one", "two", "long \x0c\x1c\u2028 line"]),
        (["one", "REST"], ["one", "rest"]),
        (["|#"], [" 10%|#", " 20%|##"]),
        (["trainer-0] t"], ["two"]),
        (["] ONE", "nowhere"], ["one"]),
        (["[trainer-0]"], TEXTS),
        (["\ufffd"], ["\ufffd"]),
        (["one\ntwo"], []),
    ],
)
def test_only_lines_with_one_of_the_texts(texts: list[str], expected: list[str], size: int) -> None:
    lines, found = Lines(0, TextFilter(texts, "[trainer-0] ")), list[Line]()
    for start in range(0, len(LOG), size):
        found += lines.feed(Chunk(start, LOG[start : start + size]))
    found += lines.flush()
    assert [line.text for line in found] == expected
    assert lines.next == len(LOG)


@pytest.mark.parametrize(("text", "line"), [("straße", "STRASSE"), ("ΟΔΟΣ", "οδος"), ("é", "CAFÉ")])
def test_upper_and_lower_case_are_the_same_in_every_script(text: str, line: str) -> None:
    assert TextFilter([text], "").admits(line)
    assert TextFilter([text], "").may_admit_some(line.encode())


def test_a_gap_is_noted_among_the_lines_with_a_text() -> None:
    lines = Lines(0, TextFilter(["x"], ""))
    lines.feed(Chunk(0, b"head\nrest with x"))
    assert [line.text.split()[0] for line in lines.feed(Chunk(1000, b"a\nxy\n"))] == ["rest", "[984", "xy"]
