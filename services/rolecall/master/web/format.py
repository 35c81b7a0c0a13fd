"""Texts of times, numbers and sizes for people. Pure."""

import re
from collections.abc import Mapping
from datetime import datetime

from rolecall.master.field_errors import MORE_ERRORS
from rolecall.spec.numbers import number, size

_FOR_PROGRAMS = re.compile(r"`rolecall |\b(GET|POST) /|--\w|\bROLECALL_")
_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))


def duration(seconds: float | None) -> str:
    """Such as `42 s`, `3 min 5 s` or `2 d 4 h`; empty for None."""
    if seconds is None:
        return ""
    whole = max(0, round(seconds))
    for place, (seconds_of, unit) in enumerate(_UNITS):
        if whole >= seconds_of:
            smaller, name = (*_UNITS, (1, "s"))[place + 1]
            rest = whole % seconds_of // smaller
            return f"{whole // seconds_of} {unit}" + (f" {rest} {name}" if rest else "")
    return f"{whole} s"


def ago(moment: datetime | None, now: datetime) -> str:
    """The time since `moment` in its largest unit, such as `3 min ago`; empty for None."""
    return "" if moment is None else f"{' '.join(duration((now - moment).total_seconds()).split()[:2])} ago"


def measure(value: float | None, unit: str | None) -> str:
    """A number with its base unit, such as `9.613 s` or `3.2 MiB`; units without a symbol are omitted."""
    if value is None:
        return number(value)
    if unit == "bytes":
        return size(round(value))
    return f"{number(value)} s" if unit == "seconds" else number(value)


def for_browser(detail: str) -> str:
    """An error of the API as a sentence, without the parts that only help in a terminal or a program."""
    first, *others = re.split(r"(?<=[;?]) ", detail)
    text = " ".join([first, *(one for one in others if not _FOR_PROGRAMS.search(one))]).removesuffix(";")
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def about_parameter(error: Mapping[str, str]) -> str:
    """The field error of a query or path parameter, with the valid values."""
    name, text = error["field"], error["message"]
    if f"'{name}'" not in text and name != MORE_ERRORS:
        text = f"parameter '{name}': {text}"
    if "legal" not in error:
        return text
    return f"{text} Valid: {error['legal']}" if text.endswith("?") else f"{text}; valid: {error['legal']}"


def percent(share: float) -> str:
    """A part of 1, such as `87 %`."""
    return f"{100 * share:.0f} %"
