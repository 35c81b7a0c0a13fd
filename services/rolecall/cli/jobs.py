"""`rolecall jobs`: list jobs."""

from collections.abc import Sequence
from textwrap import shorten
from typing import Annotated

import typer
from rich.markup import escape

from rolecall.cli.declarations import Declarations
from rolecall.cli.options import Json, Token, Url, connect
from rolecall.cli.output import age, out, print_json, print_table, progress, state
from rolecall.spec.api import MetricDocument
from rolecall.spec.job import JobOverview
from rolecall.spec.state import JobState

_REASON_CHARS = 160
State = Annotated[
    list[JobState] | None, typer.Option("--state", help="Only jobs in this state; repeat it for several.")
]
_WIDE = 110
"""On a narrower terminal, the columns whose content the ID or other commands have are left out."""
Workload = Annotated[str | None, typer.Option("--workload", help="Only jobs of this workload.")]
Name = Annotated[str | None, typer.Option("--name", metavar="TEXT", help="Only jobs with this text in their name.")]
Label = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="KEY[=VALUE]", help="Only jobs with this label; can be repeated."),
]
Owner = Annotated[str | None, typer.Option("--owner", help="Only jobs of the token with this name.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=200, help="Maximum number of jobs.")]


def jobs(  # noqa: PLR0917 - the command line is the signature
    only: State = None,
    workload: Workload = None,
    name: Name = None,
    label: Label = None,
    owner: Owner = None,
    limit: Limit = 50,
    json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """List jobs, newest first."""
    with connect(url, token) as client:
        found = client.jobs(limit, state=only, workload=workload, name=name, label=label, owner=owner)
        if json:
            print_json(client.raw)
            return
        declarations = Declarations(client)
        declared = {name: declarations.of(name) for name in {job.workload for job in found}}
    columns = {
        "ID": [job.id for job in found],
        "NAME": [escape(job.name) for job in found],
        "OWNER": [escape(job.owner) for job in found],
        "WORKLOAD": [job.workload for job in found],
        "STATE": [state(job) for job in found],
        "AGE": [age(job.created_at) for job in found],
        "PROGRESS": [escape(_progress(job, declared[job.workload])) for job in found],
    }
    if out.is_terminal and out.width < _WIDE:
        columns = {name: columns[name] for name in ("ID", "STATE", "AGE", "PROGRESS")}
    print_table(tuple(columns), zip(*columns.values(), strict=True))


def _progress(job: JobOverview, declared: Sequence[MetricDocument]) -> str:
    """The condition that a queued job waits for, the reason of a failed one, or the progress of another."""
    failure = shorten(job.reason or "", _REASON_CHARS, placeholder="…") if job.state is JobState.FAILED else ""
    return job.waiting_for or failure or progress(job.progress, declared, ended=job.state.ended)
