import pytest

from rolecall.spec.visible import listed, one_line, visible, visible_log


@pytest.mark.parametrize(
    ("given", "shown", "in_log"),
    [
        ("loss 0.5\n\tdone", "loss 0.5\n\tdone", "loss 0.5\n\tdone"),
        ("\x1b]52;c;eA==\x07", r"\x1b]52;c;eA==\x07", r"\x1b]52;c;eA==\x07"),
        ("\x1b[2J\x1b[1;31mred", r"\x1b[2J\x1b[1;31mred", "\\x1b[2J\x1b[1;31mred"),
        ("10%\r20%", r"10%\x0d20%", "10%\r20%"),
        ("\x00\x7f\x9b2J", r"\x00\x7f\x9b2J", r"\x00\x7f\x9b2J"),
        ("one\u2028two\u2029", r"one\u2028two\u2029", r"one\u2028two\u2029"),
        ("abc\u202ecba", r"abc\u202ecba", r"abc\u202ecba"),
    ],
)
def test_control_characters_are_escaped(given: str, shown: str, in_log: str) -> None:
    assert visible(given) == shown
    assert visible_log(given) == in_log
    assert "\n" not in one_line(given)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, ""),
        (1, "n0"),
        (3, "n0, n1, n2"),
        (4, "n0, n1, n2 and 1 more"),
        (9, "n0, n1, n2 and 6 more"),
    ],
)
def test_long_lists_are_cut(count: int, text: str) -> None:
    assert listed([f"n{number}" for number in range(count)], 3) == text
