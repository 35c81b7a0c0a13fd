"""`rolecall jobs`: list jobs."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from rolecall.cli.declarations import MetricsOf, declared_metrics
from rolecall.cli.options import Json, Token, Url, connect
from rolecall.cli.output import (
    NAME_CHARS,
    Terminal,
    age,
    least_room,
    list_progress,
    list_room,
    make_table,
    out,
    print_json,
    state,
)
from rolecall.spec.job import JobOverview
from rolecall.spec.report import error_of
from rolecall.spec.state import JobState
from rolecall.spec.visible import cut

State = Annotated[
    list[JobState] | None, typer.Option("--state", help="Only jobs in this state; repeat it for several.")
]
_DROPPED = ("WORKLOAD", "OWNER", "NAME", "AGE")
"""The columns that a narrow terminal omits, the first one first: an ID begins with the workload."""
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
        given = only or workload or name or label or owner
        none = f"no jobs{' meet the conditions' if given else ''}"
        out.print(job_table(out, found, declared_metrics(client), datetime.now(UTC)) if found else none)


def job_table(terminal: Terminal, jobs: Sequence[JobOverview], metrics_of: MetricsOf, now: datetime) -> Table:
    """The jobs in the columns for which the terminal has room, each on one line."""
    room = list_room(terminal, jobs)
    shown = [list_progress(job, metrics_of(job.workload), room) for job in jobs]
    rows = [
        (
            job.id,
            escape(cut(job.name, NAME_CHARS) if terminal.is_bounded else job.name),
            escape(job.owner),
            job.workload,
            state(job),
            age(job.created_at, now),
            escape(text),
        )
        for job, text in zip(jobs, shown, strict=True)
    ]
    headings = ("ID", "NAME", "OWNER", "WORKLOAD", "STATE", "AGE", "PROGRESS")
    least = {"PROGRESS": least_room(jobs, shown)}
    # Why a job failed says more than which worker did.
    return make_table(headings, rows, terminal, drop=_DROPPED, shorten=least, brief={"PROGRESS": error_of})
