"""Text for people: without control characters, which a terminal would execute, and with short lists of names. Pure."""

import re
import unicodedata
from collections.abc import Collection
from itertools import groupby, islice

# C0 except tab and line feed, DEL, C1, bidirectional control characters, the separators of lines and paragraphs, and
# lone surrogates: depending on the locale, Python prints them as any bytes, which can be control characters, or raises.
_CONTROL = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
# Spaces without width, invisible operators, the byte order mark, annotations and tags, which make names look equal.
# Joiners stay, because scripts and emoji need them.
_INVISIBLE = r"\u200b\u2060-\u2064\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
_ESCAPED = re.compile(f"[{_CONTROL}{_INVISIBLE}]")
# Allowed in logs: colors, and the carriage returns of progress bars.
_IN_LOG = re.compile(rf"(\x1b\[[0-9;]*m|\r)|[{_CONTROL}]")

# Letters, marks and symbols that are printable for Unicode, but blank: fillers of Hangul, inherent vowels of Khmer, the
# grapheme joiner, and the pattern of Braille without dots.
_BLANK = re.compile(r"[\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0]")


MAX_MARKS = 4
"""The most combining marks in a row in a name, as in Unicode's UTS #39. More cover the lines above and below."""
_MARKS = {"Mn", "Me"}


def is_printable(text: str) -> bool:
    """Return whether every character can be printed, and shows something or is a space."""
    return text.isprintable() and not _BLANK.search(text)


def is_blank(text: str) -> bool:
    """Return whether a printable text shows nothing: it has only spaces, and marks for no letter."""
    return all(one.isspace() or _is_mark(one) for one in text)


def stacks_marks(text: str) -> bool:
    """Return whether more than `MAX_MARKS` combining marks follow each other, in the form in which fonts stack them."""
    decomposed = unicodedata.normalize("NFD", text)
    return any(is_mark and len(list(run)) > MAX_MARKS for is_mark, run in groupby(decomposed, _is_mark))


def visible(text: str) -> str:
    """`text` with control and invisible characters escaped as in `\\x1b`, except for tabs and line feeds."""
    return _ESCAPED.sub(_escaped, text)


def visible_log(text: str) -> str:
    """Likewise for the output of a program: colors, carriage returns and invisible characters stay as well."""
    return _IN_LOG.sub(lambda found: found[1] or _escaped(found), text)


def one_line(text: str) -> str:
    """Likewise with line feeds escaped, so that the text is one line."""
    return visible(text).replace("\n", "\\n")


def cut(text: str, chars: int) -> str:
    """`text` with up to `chars` characters, of which the last is an ellipsis if more were left out."""
    return text if len(text) <= chars else f"{text[: chars - 1]}…"


def listed(names: Collection[str], most: int = 10) -> str:
    """Up to `most` names, separated by commas, and the number of the others."""
    more = len(names) - most
    return ", ".join(islice(names, most)) + (f" and {more} more" if more > 0 else "")


def _is_mark(one: str) -> bool:
    return unicodedata.category(one) in _MARKS or unicodedata.combining(one) != 0


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
