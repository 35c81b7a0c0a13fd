"""Selects lines of the logs of a job's workers by time and content. Pure."""

import re
from collections.abc import Iterable, Iterator
from datetime import datetime

_WORKER = re.compile(r"\[[^\]]+\] ")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{3})?(?:Z|[+-]\d\d:?\d\d)")
_JSON_TIME = re.compile(rf'\{{"time": "({_TIME.pattern})"')


def since(lines: Iterable[str], moment: datetime) -> Iterator[str]:
    """The lines of each worker after its last log record from before `moment`.

    What a job prints has no time. It counts as older only if an older record follows it, and the indented lines of a
    traceback are as old as the record that they belong to. All lines of a worker must follow one another.
    """
    worker, kept, is_old = "", list[str](), False
    for line in lines:
        found = _WORKER.match(line)
        name = found[0] if found else ""
        text = line.removeprefix(name)
        if name != worker:
            yield from kept
            worker, kept, is_old = name, [], False
        time = time_of(text)
        if time is not None:
            is_old = time < moment
        elif not text.startswith("    "):
            is_old = False
        if is_old:
            if time is not None:
                kept = []
        else:
            kept.append(line)
    yield from kept


def matching(lines: Iterable[str], pattern: re.Pattern[str]) -> Iterator[str]:
    """The lines in which the pattern occurs."""
    return (line for line in lines if pattern.search(line))


def time_of(text: str) -> datetime | None:
    """The time of a log record, as text or JSON; None for other lines, and for times without an offset from UTC."""
    found = _TIME.match(text) or _JSON_TIME.match(text)
    if found is None:
        return None
    try:
        return datetime.fromisoformat((found[1] if found.re is _JSON_TIME else found[0]).replace(",", "."))
    except ValueError:
        return None
