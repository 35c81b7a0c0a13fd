"""`rolecall compare`: the parameters and results in which jobs differ."""

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer
from rich.markup import escape

from rolecall.cli.completion import job_ids
from rolecall.cli.exits import CommandError, Exit
from rolecall.cli.options import Json, Token, Url, connect
from rolecall.cli.output import cut, number, out, print_json, print_table, state
from rolecall.cli.variants import metrics
from rolecall.spec.comparison import differences
from rolecall.spec.job import JobDocument

_RESULT = "result."
_CHARS = 60
"""Values can be long lists. They are whole with `--json`."""
JobIds = Annotated[
    list[str],
    typer.Argument(metavar="ID ID…", help="Ids of two or more jobs, from `rolecall jobs`.", autocompletion=job_ids),
]


def compare(jobs: JobIds, json: Json = False, url: Url = None, token: Token = None) -> None:
    """Show in what jobs differ (state, name, workload, roles, parameters), and all final metrics side by side."""
    if len(jobs) < 2:
        raise CommandError(Exit.USAGE, "compare needs the ids of two or more jobs, from `rolecall jobs`")
    with connect(url, token) as client:
        found = [client.job(job) for job in jobs]
    fields = [(row.name, row.values) for row in differences(found) if not row.name.startswith(_RESULT)]
    scores = [metrics(job) for job in found]
    names = list(dict.fromkeys(name for one in scores for name in one))
    if json:
        print_json(
            {
                "jobs": [{"id": job.id, "name": job.name, "state": job.state} for job in found],
                "differences": {name: list(values) for name, values in fields},
                "metrics": {name: [one.get(name) for one in scores] for name in names},
            }
        )
        return
    ids = [escape(job.id) for job in found]
    if rows := list(_rows(fields, found)):
        print_table(("DIFFERENCE", *ids), rows)
    else:
        out.print("the jobs have the same state, name, workload, roles and parameters")
    out.print()
    rows = [(escape(name), *(number(one[name]) if name in one else "-" for one in scores)) for name in names]
    print_table(("METRIC", *ids), rows)


def _rows(fields: Sequence[tuple[str, list[str | None]]], found: Sequence[JobDocument]) -> Iterator[tuple[str, ...]]:
    """The state, the name and the other fields, each only if the jobs differ in it."""
    if len({job.state for job in found}) > 1:
        yield ("state", *(state(job) for job in found))
    names: list[str | None] = [job.name for job in found]
    for name, values in [("name", names), *fields] if len(set(names)) > 1 else fields:
        cells = ("-" if value is None else escape(cut(value, _CHARS)) for value in values)
        yield (escape(name.removeprefix("params.")), *cells)
