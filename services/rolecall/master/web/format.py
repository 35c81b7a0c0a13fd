"""Texts of times, numbers and sizes for people. Pure."""

import re
from datetime import datetime

_FOR_PROGRAMS = re.compile(r"`rolecall |\b(GET|POST) /|--\w|\bROLECALL_")
_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")


def duration(seconds: float | None) -> str:
    """Such as `42 s`, `3 min 5 s` or `2 d 4 h`; empty for None."""
    if seconds is None:
        return ""
    whole = max(0, round(seconds))
    for place, (size, unit) in enumerate(_UNITS):
        if whole >= size:
            smaller, name = (*_UNITS, (1, "s"))[place + 1]
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {name}" if rest else "")
    return f"{whole} s"


def ago(moment: datetime | None, now: datetime) -> str:
    """The time since `moment`, such as `3 min ago`; empty for None."""
    return "" if moment is None else f"{duration((now - moment).total_seconds())} ago"


def number(value: object) -> str:
    """An integer, or a number from 1000 on, without decimals, such as `12,345`; a smaller number with four significant
    digits, such as `0.0001234`, and one from 10^9 on too, such as `3.246e+15`; other values as they are."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or 1000 <= abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def measure(value: float, unit: str | None) -> str:
    """A number with its base unit, such as `9.613 s` or `3.2 MiB`; units without a symbol are omitted."""
    if unit == "bytes":
        return size(round(value))
    return f"{number(value)} s" if unit == "seconds" else number(value)


def for_browser(detail: str) -> str:
    """An error of the API as a sentence, without the parts that only help in a terminal or a program."""
    first, *others = re.split(r"(?<=[;?]) ", detail)
    text = " ".join([first, *(one for one in others if not _FOR_PROGRAMS.search(one))]).removesuffix(";")
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def percent(share: float) -> str:
    """A part of 1, such as `87 %`."""
    return f"{100 * share:.0f} %"


def size(value: int) -> str:
    """Such as `3.2 MiB`."""
    amount, place = float(value), 0
    while amount >= 1024 and place < len(_BYTES) - 1:
        amount, place = amount / 1024, place + 1
    return f"{amount:.1f} {_BYTES[place]}" if place else f"{value} B"
