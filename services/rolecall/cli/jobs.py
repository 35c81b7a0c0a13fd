"""`rolecall jobs`: list jobs."""

from collections.abc import Sequence
from textwrap import shorten
from typing import Annotated

import typer
from rich.markup import escape

from rolecall.cli.declarations import Declarations
from rolecall.cli.options import Json, Token, Url, connect
from rolecall.cli.output import age, print_json, print_table, progress, state
from rolecall.spec.api import MetricDocument
from rolecall.spec.job import JobOverview
from rolecall.spec.state import JobState

_REASON_CHARS = 160
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
                escape(_progress(job, declared[job.workload])),
            )
            for job in found
        ],
    )


def _progress(job: JobOverview, declared: Sequence[MetricDocument]) -> str:
    """What a queued job waits for, why a job failed, or how far it is."""
    failure = shorten(job.reason or "", _REASON_CHARS, placeholder="…") if job.state is JobState.FAILED else ""
    return job.waiting_for or failure or progress(job.progress, declared, ended=job.state.ended)
