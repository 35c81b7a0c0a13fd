"""Format results: tables and text for people, JSON for programs.

Results go to stdout, everything else to stderr.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rolecall.cli.exits import CommandError, Exit
from rolecall.spec.api import MetricDocument
from rolecall.spec.job import JobDocument, JobOverview, Progress
from rolecall.spec.metric import Score, Split, scores
from rolecall.spec.numbers import number, size
from rolecall.spec.state import JobState
from rolecall.spec.visible import cut, visible

_UNBOUNDED = 10_000
_WHOLE = frozenset({"ID", "JOB", "NODE", "TARGET", "WORKER", "WORKLOAD"})
_MAX_SCORES = 2
_LEAST_NAME_CHARS = 4
_SPLITS: Mapping[Split, str] = MappingProxyType({Split.VALIDATION: "val", Split.EVALUATION: "eval"})
"""The short names of data in a list in a terminal."""
_PROGRESS_CHARS, _MAX_PROGRESS_CHARS = 30, 60
"""The least and the most characters of the progress of jobs for which a list in a terminal omits other columns."""
_WAITING = "waiting for "
NAME_CHARS = 24
"""The length to which a terminal cuts the names of jobs in lists."""
GAP = 2
"""The columns of a terminal between two columns of a table."""
_CAUSES: Mapping[str, str] = MappingProxyType(
    {"repeated": "repeated steps", "finish": "work after the last step", "other": "other work"}
)
"""The causes of lost time whose names don't explain them."""
_NARROWEST = 8
"""The columns that a shortened column has even if the terminal is too narrow for it."""
_MARKS = "\"'],:;.)}"
_NO_COLUMNS: Mapping[str, int] = MappingProxyType({})
_NO_BRIEF: Mapping[str, Callable[[str], str]] = MappingProxyType({})


class Terminal(Console):
    """Escapes control characters in texts of jobs, nodes and callers."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)

    @property
    def is_bounded(self) -> bool:
        """False for a file or a pipe, which gets all texts in full."""
        return self.width < _UNBOUNDED


# Long lines stay whole, for copying. `soft_wrap=False` prints a sentence, which a terminal wraps between words.
out = Terminal(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else _UNBOUNDED)
err = Terminal(stderr=True, highlight=False, soft_wrap=True)

ARROWS = {"higher": "↑", "lower": "↓"}
"""The directions of better values."""
STYLES = {"succeeded": "green", "failed": "red", "cancelled": "yellow", "paused": "yellow", "running": "cyan"}


def print_json(value: Any) -> None:
    """Print one JSON document to stdout, without styles."""
    # Only ASCII on a terminal, because JSON doesn't escape all control characters.
    print(json.dumps(value, indent=2, ensure_ascii=sys.stdout.isatty()))


def print_written(path: Path) -> None:
    """Print the path of a file to stdout, for scripts, and its size and folder to stderr."""
    out.print(str(path), markup=False)
    err.print(f"wrote {size(path.stat().st_size)} to {path.absolute()}", markup=False)


def write_text(path: Path, text: str) -> None:
    """Write a file that the user has named. Raises `CommandError`."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(Exit.USAGE, f"can't write {path}: {error.strerror}") from None


def print_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    drop: Sequence[str] = (),
    shorten: Mapping[str, int] = _NO_COLUMNS,
    empty: str = "",
) -> None:
    """Print a table as `make_table` returns it, or the line `empty` without rows.

    Except on a terminal, each row is one line with all its texts.
    """
    rows = list(rows)
    out.print(make_table(headings, rows, out, drop=drop, shorten=shorten) if rows or not empty else escape(empty))


def print_values(values: Sequence[tuple[str, str]], *, indent: int = 0, name_width: int = 0) -> None:
    """Print each name and its value. On a terminal, a long value continues below itself.

    Except on a terminal, each value is one line.
    """
    name_width = max([name_width, *(width(name) for name, _ in values)])
    if not out.is_bounded:
        for name, value in values:
            out.print(f"{' ' * indent}{name}{' ' * (name_width - width(name))}  {value}")
        return
    grid = Table.grid(padding=(0, GAP, 0, 0))
    grid.add_column(min_width=min(name_width, out.width // 2), overflow="fold")
    grid.add_column(overflow="fold")
    columns = out.width - indent - GAP - min(name_width, out.width // 2)
    for name, value in values:
        text = out.render_str(value)
        grid.add_row(name, Text("\n").join(text.divide(word_breaks(text.plain, columns))))
    out.print(Padding(grid, (0, 0, 0, indent), expand=False))


def word_breaks(text: str, columns: int) -> list[int]:
    """The places at which words with more than `columns` characters continue on the next line. Pure.

    A path breaks after a slash. What follows a break is more than the marks that end a value in a list.
    """
    found: list[int] = []
    for word in re.finditer(r"\S+", text):
        start, end = word.span()
        while end - start > columns > 1:
            slash = text.rfind("/", start + columns // 4, start + columns)
            rest = text[start:end].rstrip(_MARKS)
            start += min(columns if slash < 0 else slash + 1 - start, max(1, len(rest) - 1))
            found.append(start)
    return found


def make_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    terminal: Terminal,
    *,
    drop: Sequence[str] = (),
    shorten: Mapping[str, int] = _NO_COLUMNS,
    brief: Mapping[str, Callable[[str], str]] = _NO_BRIEF,
) -> Table:
    """A table without borders. Ids and names are whole and on one line, so that they can be copied.

    With `drop` or `shorten`, each row is one line, also on a narrow terminal. It omits the columns `drop`, the first
    one first, until the rest has room. The columns `shorten` need room for the given number of characters, and end
    with … if they are longer than what remains. The functions in `brief` return what a cell of a column has then.
    Without `drop` and `shorten`, other columns than ids and names have several lines.
    """
    rows = list(rows)
    columns = [[heading, *(row[place] for row in rows)] for place, heading in enumerate(headings)]
    table = Table(box=None, pad_edge=False, header_style="bold")
    if drop or shorten:
        kept = fitting(headings, [max(map(width, cells)) for cells in columns], terminal.width, drop, shorten)
        for place, size in kept.items():
            if (short := brief.get(headings[place])) is not None:
                columns[place] = [cell if width(cell) <= size else short(cell) for cell in columns[place]]
            table.add_column(headings[place], overflow="ellipsis", no_wrap=True, min_width=size, max_width=size)
    else:
        kept = range(len(headings))
        for heading, *cells in columns:
            is_whole = heading in _WHOLE
            least = max(map(width, cells), default=None) if is_whole else None
            table.add_column(heading, overflow="fold", no_wrap=is_whole, min_width=least)
    for at in range(1, len(rows) + 1):
        table.add_row(*(columns[place][at] for place in kept))
    return table


def fitting(
    headings: Sequence[str], widths: Sequence[int], available: int, drop: Sequence[str], shorten: Mapping[str, int]
) -> dict[int, int]:
    """The places of the columns that a terminal shows, with their widths. Pure."""
    found = dict(enumerate(widths))
    for heading in drop:
        needed = [min(size, shorten.get(headings[place], size)) for place, size in found.items()]
        if _total(needed) <= available:
            break
        # The last one: a user can give another column the same heading, but only to the left of ours.
        del found[len(headings) - 1 - list(reversed(headings)).index(heading)]
    for floors in (shorten, dict.fromkeys(shorten, _NARROWEST)):
        for place, columns in found.items():
            excess = _total(found.values()) - available
            if excess > 0 and (floor := floors.get(headings[place])) is not None:
                found[place] -= max(0, min(excess, columns - floor))
    return found


def _total(widths: Iterable[int]) -> int:
    """The width of a table with columns of these widths."""
    return sum(size + GAP for size in widths) - GAP


def width(cell: str) -> int:
    """The columns of a terminal that the longest line of a cell takes, whose markup takes none."""
    return max(line.cell_len for line in out.render_str(cell).split(allow_blank=True))


def none_of(things: str, document: JobOverview) -> str:
    """The line that replaces an empty table of what a job has."""
    return f"job {document.id} has no {things}{'' if document.state.ended else ' yet'}"


def state(document: JobOverview) -> str:
    """The job's state with its color."""
    style = STYLES.get(document.state, "default")
    return f"[{style}]{document.state}[/]"


def duration(seconds: float) -> str:
    """Seconds as `42s`, `3m07s` or `2h05m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    return f"{whole // 60}m{whole % 60:02}s" if whole < 3600 else f"{whole // 3600}h{whole % 3600 // 60:02}m"


def age(moment: datetime, now: datetime) -> str:
    """The time from `moment` to `now`."""
    return duration(max(0.0, (now - moment).total_seconds()))


def time_heading(name: str, terminal: Terminal) -> str:
    """The heading of a column of `local_time`. On a terminal, it names the time zone, such as `AT (UTC+02:00)`."""
    offset = f"{_in_local_zone(datetime.now(UTC)):%z}"
    zone = f"UTC{offset[:3]}:{offset[3:5]}" if int(offset) else "UTC"
    return f"{name} ({zone})" if terminal.is_bounded else name


def local_time(moment: datetime, terminal: Terminal, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """The local time of a moment. Except on a terminal, it has its offset from UTC."""
    local = _in_local_zone(moment)
    return f"{local:{form}}" if terminal.is_bounded else local.isoformat(" ", "seconds")


def _in_local_zone(moment: datetime) -> datetime:
    """The moment with the present offset, also if that of the moment was another, so that a heading can name it."""
    return moment.astimezone(datetime.now(UTC).astimezone().tzinfo)


def roles(document: JobDocument) -> str:
    """The gang, such as `1 master, 2 trainers with a GPU`."""
    named = (
        (f"{count} {role}{'s' * (count != 1)}", document.resources.get(role))
        for role, count in document.roles.items()
        if count
    )
    return ", ".join(f"{name} {own.described}" if own and own.described else name for name, own in named)


def progress(
    progress: Progress, declared: Sequence[MetricDocument] = (), *, is_live: bool = True, room: int | None = None
) -> str:
    """The newest figures on one line; empty if there are none.

    These include the main scores among the declared metrics. Speed and remaining time are left out without `is_live`,
    for a job without a running gang. With `room`, the characters that a list in a terminal has, there are fewer
    figures: a score replaces the loss, and what doesn't have room is left out or has a shorter name.
    """
    step = f"step {progress.step}{f'/{progress.steps}' if progress.steps else ''}" if progress.step else ""
    loss = f"loss {number(progress.loss)}" if progress.loss is not None else ""
    left = f"{duration(progress.seconds_left)} left" if progress.seconds_left and is_live else ""
    ranked = scores(declared, progress.metrics)
    if room is not None:
        texts = list(_brief_figures(step, _main_value(progress, ranked), left, room))
        return next((text for text in texts if len(text) <= room), texts[-1])
    figures = [
        step,
        f"epoch {progress.epoch}" if progress.epoch is not None else "",
        loss,
        left,
        f"{progress.samples_per_s:,.0f} samples/s" if progress.samples_per_s and is_live else "",
        # Last, because they are long: a narrow terminal cuts the end.
        *(f"{name} {number(progress.metrics[name])} ({ARROWS[to]} is better)" for _, name, to in ranked[:_MAX_SCORES]),
    ]
    return _joined(*figures)


def _main_value(progress: Progress, ranked: Sequence[Score]) -> tuple[str, str]:
    """The name and the value of the first score, such as `val_auc` and `0.9152 ↑`, or of the loss; else empty texts."""
    if not ranked:
        return ("loss", number(progress.loss)) if progress.loss is not None else ("", "")
    split, name, better = ranked[0]
    short = name.replace(split, _SPLITS[split], 1) if split in _SPLITS else name
    return short, f"{number(progress.metrics[name])} {ARROWS[better]}"


def _brief_figures(step: str, main: tuple[str, str], left: str, room: int) -> Iterator[str]:
    """The figures of a list, from the most to the fewest.

    The number of all steps goes first, because the remaining time tells as much. Of a job with a remaining time, the
    main value follows, of another the step. The name of the value is shortened, but never the value.
    """

    def value(others: str = "") -> str:
        name, shown = main
        free = room - len(_joined(others, " ")) - len(shown)
        return f"{cut(name, max(_LEAST_NAME_CHARS, free))} {shown}" if shown else ""

    steps = tuple(dict.fromkeys((step, step.partition("/")[0])))
    for one in steps:
        yield _joined(one, value(_joined(one, left)), left)
    if left:
        yield from (_joined(one, left) for one in steps)
    yield left or value() or steps[-1]


def _joined(*figures: str) -> str:
    return ", ".join(filter(None, figures))


def list_room(terminal: Terminal, jobs: Sequence[JobOverview]) -> int | None:
    """The characters that a list in a terminal has for the progress of jobs next to ids and states; None elsewhere."""
    if not terminal.is_bounded:
        return None
    return terminal.width - max(len(job.id) for job in jobs) - max(len(job.state) for job in jobs) - 2 * GAP


def list_progress(job: JobOverview, declared: Sequence[MetricDocument], room: int | None) -> str:
    """The condition that a queued job waits for, the reason of a failed one, or the progress of another.

    A list with little `room` omits the words that the state of a queued job says as well.
    """
    if job.waiting_for:
        is_whole = room is None or len(job.waiting_for) <= room
        return job.waiting_for if is_whole else job.waiting_for.removeprefix(_WAITING)
    failure = " ".join((job.reason or "").split()) if job.state is JobState.FAILED else ""
    most = room if room is None else min(room, _MAX_PROGRESS_CHARS)
    return failure or progress(job.progress, declared, is_live=job.state.holds_slots, room=most)


def least_room(jobs: Sequence[JobOverview], shown: Sequence[str]) -> int:
    """The characters for which a list in a terminal omits other columns, from the texts of `list_progress`.

    Each progress is whole, and so is each condition up to its details, unless it is long. Reasons of failures aren't:
    they can have any length, and those jobs need no watching.
    """
    watched = (text for job, text in zip(jobs, shown, strict=True) if job.state is not JobState.FAILED)
    return max([_PROGRESS_CHARS, *(min(len(text.partition(";")[0]), _MAX_PROGRESS_CHARS) for text in watched)])


def goodput(document: JobDocument) -> str:
    """The useful share of a job's time, and what the rest was lost to, the most first; empty if it is unknown."""
    if document.goodput is None:
        return ""
    causes = sorted((document.lost_s or {}).items(), key=lambda one: -one[1])
    lost = ", ".join(f"{_CAUSES.get(cause, cause)} {duration(seconds)}" for cause, seconds in causes if seconds >= 0.5)
    return f"{document.goodput:.0%}" + (f" (lost to {lost})" if lost else "")


def step_times(progress: Progress) -> str:
    """The time that the steps took by activity, the most first; empty if it is unknown."""
    times = progress.spent.steps_by_activity if progress.spent else {}
    shown = sorted(((name, seconds) for name, seconds in times.items() if seconds >= 0.5), key=lambda one: -one[1])
    return ", ".join(f"{name} {duration(seconds)}" for name, seconds in shown)


def outcome(document: JobDocument) -> str:
    """The last line of a followed job."""
    if document.result and document.state == "succeeded":
        shown = {name: value for name, value in document.result.items() if not isinstance(value, list)}
        metrics = " ".join(f"{name}={number(value)}" for name, value in shown.items())
        return f"{document.workload} {document.state}: {metrics}"
    reason = (document.reason or "").partition("\n")[0]
    return f"{document.workload} {document.state}" + (f": {reason}" if reason else "")
