"""`rolecall metrics`: the values that the workers of a job reported."""

import csv
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from rolecall.cli.completion import declared_names
from rolecall.cli.curve import sparkline
from rolecall.cli.exits import CommandError, Exit
from rolecall.cli.options import JobId, Json, Token, Url, connect
from rolecall.cli.output import GAP, Terminal, fitting, make_table, none_of, out, print_json, width
from rolecall.client.plot import curves, metric_names, table
from rolecall.spec.api import COORDINATES
from rolecall.spec.numbers import number
from rolecall.spec.similar import most_similar
from rolecall.spec.visible import one_line

_CURVE, _SHORTEST_CURVE = 24, 8
_HEADINGS = ("METRIC", "WORKER", "STEP", "LAST", "MIN", "MAX")
_DROPPED = ("MIN", "MAX")
"""The columns that a narrow terminal omits, so that names are whole."""
_FORMULA = re.compile(r'(^|[\t;])(?=[ "]*[=+\-@\t\uff0b\uff0d\uff1d\uff20])')
"""The beginning of a cell that is a formula. Some spreadsheets also know wide signs, and separators but the comma."""
Names = Annotated[
    list[str] | None,
    typer.Option("--metric", metavar="NAME", help="Only this metric; can be repeated.", autocompletion=declared_names),
]
Points = Annotated[
    int, typer.Option("--points", min=2, max=100_000, help="Approximate maximum number of steps of each worker.")
]
OfAttempt = Annotated[int | None, typer.Option("--attempt", min=1, help="Only this attempt; by default all.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print CSV with a row for each worker and step.")]


def metrics(  # noqa: PLR0917 - the command line is the signature
    job: JobId,
    names: Names = None,
    attempt: OfAttempt = None,
    points: Points = 2000,
    as_csv: Csv = False,
    json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Show the curve of each metric, and its last, smallest and largest value; or all steps with --csv or --json."""
    if as_csv and json:
        raise CommandError(Exit.USAGE, "--csv can't be combined with --json")
    if names and json:
        raise CommandError(Exit.USAGE, "--json prints all metrics; omit --metric, or use --csv")
    with connect(url, token) as client:
        series = client.metrics(job, points, attempt)
        if json:
            print_json(client.raw)
            return
        rows = table(series)
        chosen = chosen_metrics(rows, names or metric_names(rows))
        empty = "" if chosen else none_of("metrics", client.job(job))
    if as_csv:
        _print_csv(rows, chosen)
    else:
        out.print(metric_table(out, lines(rows, chosen)) if chosen else escape(empty))


def chosen_metrics(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """The names, each of which must be a reported metric."""
    known = metric_names(rows)
    for name in names:
        if name not in known:
            near = most_similar(name, known)
            hint = f"did you mean {near!r}? " if near else ""
            valid = ", ".join(known) or "none yet"
            raise CommandError(
                Exit.USAGE, f"--metric {name}: the job has reported no metric {name!r}; {hint}valid: {valid}"
            )
    return list(names)


def lines(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[tuple[str, str, list[tuple[float, float]]]]:
    """The name, the worker and the points (step, value) of each curve."""
    found: list[tuple[str, str, list[tuple[float, float]]]] = []
    for name in names:
        chart = curves(rows, name, name)
        steps = [float(step) for step in chart.x_values]
        found += [(name, line.label, [(steps[point.x], point.y) for point in line.points]) for line in chart.series]
    return found


def metric_table(terminal: Terminal, found: Sequence[tuple[str, str, Sequence[tuple[float, float]]]]) -> Table:
    """A row for each curve, which takes what the other columns leave of the terminal's width."""
    others = [_figures(name, worker, [value for _, value in points], points[-1][0]) for name, worker, points in found]
    widths = [max(map(width, column)) for column in zip(_HEADINGS, *others, strict=True)]
    kept = fitting(_HEADINGS, widths, terminal.width - GAP - _SHORTEST_CURVE, _DROPPED, {})
    room = terminal.width - sum(kept.values()) - GAP * len(kept)
    curve = min(_CURVE, max(_SHORTEST_CURVE, room))

    def row(cells: Sequence[str], drawn: str) -> list[str]:
        shown = [cells[place] for place in kept]
        return [*shown[:2], drawn, *shown[2:]]

    rows = [
        row(cells, sparkline([value for _, value in points], curve))
        for cells, (_, _, points) in zip(others, found, strict=True)
    ]
    return make_table(row(_HEADINGS, "CURVE"), rows, terminal)


def _figures(name: str, worker: str, values: Sequence[float], step: float) -> tuple[str, ...]:
    return escape(one_line(name)), worker, f"{step:g}", number(values[-1]), number(min(values)), number(max(values))


def _print_csv(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    fields = [*COORDINATES, *names]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    # The job's code chooses the names. As OWASP recommends, a quote makes a spreadsheet show them as text.
    writer.writerow([_FORMULA.sub(r"\1'", one_line(name)) for name in fields])
    for row in rows:
        if any(name in row for name in names):
            writer.writerow([row.get(name, "") for name in fields])
