import pytest

from rolecall.spec.visible import is_blank, is_printable, listed, one_line, stacks_marks, visible, visible_log


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
        ("abc\u061ccba", r"abc\u061ccba", r"abc\u061ccba"),
        ("\udcc2\udc9b2J", r"\udcc2\udc9b2J", r"\udcc2\udc9b2J"),
        ("a\u200bb\ufeff\U000e0041", r"a\u200bb\ufeff\U000e0041", "a\u200bb\ufeff\U000e0041"),
    ],
)
def test_control_characters_are_escaped(given: str, shown: str, in_log: str) -> None:
    assert visible(given) == shown
    assert visible_log(given) == in_log
    assert "\n" not in one_line(given)


@pytest.mark.parametrize("blank", "\u115f\u1160\u17b4\u2800\u3164\uffa0\u034f\u00ad\u200b\u200d\u00a0\u202e")
def test_characters_that_show_nothing_are_not_printable(blank: str) -> None:
    assert not is_printable(f"a{blank}b")
    assert not is_printable(blank)


@pytest.mark.parametrize(
    "name",
    [
        "run 3",
        "한국어",
        "é",
        "e\u0301",
        "⚙\ufe0f",
        "—",
        "日本",
        "🚀",
        "a" + "\u0301" * 4,
        "שָּׁ",
        "क्षि",
        "ẫ",
        "e\u0302\u0301" * 40,
    ],
)
def test_names_in_any_language_are_printable_and_not_blank(name: str) -> None:
    assert is_printable(name)
    assert not is_blank(name)
    assert not stacks_marks(name)


@pytest.mark.parametrize("name", ["", " ", "\ufe0f", " \u0301 "])
def test_a_text_of_spaces_and_marks_is_blank(name: str) -> None:
    assert is_blank(name)


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


@pytest.mark.parametrize(
    "name",
    ["a" + "\u0301" * 5, "run a" + "\u0300\u0316\u20dd\u0327\u0489" + " 3", "a" + "\u0301\u302e" * 3, "\u0344" * 3],
)
def test_many_marks_on_a_letter_are_found(name: str) -> None:
    assert stacks_marks(name)
