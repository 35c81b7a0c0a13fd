"""Shows control characters instead of sending them to a terminal, which would obey them. Pure."""

import re

# C0 but tab and line feed, DEL, C1, and the characters that change the direction of text.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# What a log may send to a terminal: colors, and the carriage returns of progress bars.
_IN_LOG = re.compile(rf"(\x1b\[[0-9;]*m|\r)|{_CONTROL.pattern}")


def visible(text: str) -> str:
    """`text` with control characters as `\\x1b`; tabs and line feeds stay."""
    return _CONTROL.sub(_shown, text)


def visible_log(text: str) -> str:
    """Likewise for what a program printed: its colors and carriage returns stay, too."""
    return _IN_LOG.sub(lambda found: found[1] or _shown(found), text)


def one_line(text: str) -> str:
    """Likewise with line feeds shown as well, so that nothing looks like a line of its own."""
    return visible(text).replace("\n", "\\n")


def _shown(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
