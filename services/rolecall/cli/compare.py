"""`rolecall compare`: the parameters and results in which jobs differ."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer
from rich.markup import escape

from rolecall.cli.completion import job_ids
from rolecall.cli.declarations import declared_metrics
from rolecall.cli.exits import CommandError, Exit
from rolecall.cli.options import Json, Token, Url, connect
from rolecall.cli.output import ARROWS, GAP, out, print_json, print_table, state, width
from rolecall.cli.variants import direction, metrics, scores
from rolecall.client import Client, UnknownName
from rolecall.spec.comparison import OTHER_WORKLOADS, differences, excerpts, have_one_workload
from rolecall.spec.job import JobDocument
from rolecall.spec.numbers import number
from rolecall.spec.visible import cut, one_line

_RESULT = "result."
_CHARS = 60
"""Names and values can be long. A terminal shows at most about this many characters of each."""
_TITLE_CHARS, _VALUE_CHARS = 24, 10
"""The room that a narrow terminal has at least for a name and for a value. Every number fits."""
JobIds = Annotated[
    list[str],
    typer.Argument(metavar="ID ID…", help="Ids of two or more jobs, from `rolecall jobs`.", autocompletion=job_ids),
]


def compare(jobs: JobIds, json: Json = False, url: Url = None, token: Token = None) -> None:
    """Show how jobs differ (state, name, workload, roles, parameters), and all final metrics side by side."""
    if len(jobs) < 2:
        raise CommandError(Exit.USAGE, "compare needs the ids of two or more jobs, from `rolecall jobs`")
    if again := [job for job in jobs if jobs.count(job) > 1]:
        raise CommandError(Exit.USAGE, f"job {again[0]} is given twice; compare needs different jobs")
    with connect(url, token) as client:
        found = [client.job(job) for job in jobs]
        schemas = {} if have_one_workload(found) else _schemas(client, found)
        metrics_of = declared_metrics(client)
        declared = [] if json else [metric for job in found for metric in metrics_of(job.workload)]
    rows = differences(found, schemas)
    fields = [(row.name, row.values) for row in rows if not row.name.startswith(_RESULT)]
    if json:
        numbers = [metrics(job) for job in found]
        print_json(
            {
                "jobs": [{"id": job.id, "name": job.name, "state": job.state} for job in found],
                "differences": {name: list(values) for name, values in fields},
                "metrics": {name: [one.get(name) for one in numbers] for one in numbers for name in one},
            }
        )
        return
    if not have_one_workload(found):
        out.print(OTHER_WORKLOADS, soft_wrap=False)
        out.print()
    headings = [escape(job.id) for job in found]
    is_narrow = out.is_bounded and _TITLE_CHARS + sum(GAP + width(one) for one in headings) > out.width
    if is_narrow:  # Ids as headings would have several lines.
        headings = [str(place) for place, _ in enumerate(found, 1)]
        key = [(place, escape(job.id), escape(job.name)) for place, job in zip(headings, found, strict=True)]
        print_table(("JOB", "ID", "NAME"), key, shorten={"NAME": _VALUE_CHARS})
        out.print()
    room = max(_VALUE_CHARS, (out.width - _TITLE_CHARS) // len(found) - GAP)
    shorten: dict[str, int] = {}
    if out.is_bounded:  # Ids as headings stay whole, also if some are longer than others.
        shorten = dict.fromkeys(("DIFFERENCE", "METRIC"), _TITLE_CHARS)
        shorten |= {one: room if is_narrow else width(one) for one in headings}
    if rows := list(_rows(fields, found, min(room, _CHARS), with_names=not is_narrow)):
        print_table(("DIFFERENCE", *headings), rows, shorten=shorten)
    else:
        out.print(f"the jobs have the same state,{'' if is_narrow else ' name,'} workload, roles and parameters")
    out.print()
    reported = [scores(job) for job in found]
    rows = [
        (
            escape(f"{one_line(name)} {ARROWS[better]}" if (better := direction(declared, name)) else one_line(name)),
            *(number(one[name]) if name in one else "-" for one in reported),
        )
        for name in dict.fromkeys(name for one in reported for name in one)
    ]
    print_table(("METRIC", *headings), rows, shorten=shorten, empty="none of the jobs has metrics")


def _schemas(client: Client, jobs: Sequence[JobDocument]) -> dict[str, Mapping[str, Any]]:
    """The parameters of the workloads that are still installed."""
    found: dict[str, Mapping[str, Any]] = {}
    for name in {job.workload for job in jobs}:
        with suppress(UnknownName):
            found[name] = client.workload(name).params
    return found


def _rows(
    fields: Sequence[tuple[str, list[str | None]]], found: Sequence[JobDocument], chars: int, *, with_names: bool
) -> Iterator[tuple[str, ...]]:
    """The state, the name and the other fields, each only if the jobs differ in it.

    On a terminal, a value has about `chars` characters.
    """
    if len({job.state for job in found}) > 1:
        yield ("state", *(state(job) for job in found))
    names: list[str | None] = [job.name or None for job in found]
    for name, values in [("name", names), *fields] if with_names and len(set(names)) > 1 else fields:
        shown = [value if value is None else one_line(value) for value in values]
        title = one_line(name.removeprefix("params."))
        if out.is_bounded:
            shown, title = excerpts(shown, chars), cut(title, _CHARS)
        yield (escape(title), *("-" if value is None else escape(value or '""') for value in shown))
