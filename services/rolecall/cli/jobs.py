"""`rolecall jobs`: list jobs."""

from typing import Annotated

import typer
from rich.markup import escape

from rolecall.cli.declarations import Declarations
from rolecall.cli.options import Json, Token, Url, connect
from rolecall.cli.output import age, print_json, print_table, progress, state
from rolecall.spec.state import JobState

State = Annotated[JobState | None, typer.Option("--state", help="Only jobs in this state.")]
Owner = Annotated[str | None, typer.Option("--owner", help="Only jobs of the token with this name.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=200, help="Maximum number of jobs.")]


def jobs(  # noqa: PLR0917 - the command line is the signature
    only: State = None,
    owner: Owner = None,
    limit: Limit = 50,
    json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """List jobs, newest first."""
    with connect(url, token) as client:
        found = client.jobs(limit, state=only, owner=owner)
        if json:
            print_json(client.raw)
            return
        declarations = Declarations(client)
        declared = {name: declarations.of(name) for name in {job.workload for job in found}}
    print_table(
        ("ID", "NAME", "OWNER", "WORKLOAD", "STATE", "AGE", "PROGRESS"),
        [
            (
                job.id,
                escape(job.name),
                escape(job.owner),
                job.workload,
                state(job),
                age(job.created_at),
                escape(job.waiting_for or progress(job.progress, declared[job.workload], ended=job.state.ended)),
            )
            for job in found
        ],
    )
