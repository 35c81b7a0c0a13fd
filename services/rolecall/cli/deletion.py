"""`rolecall delete` and `rolecall prune`: delete jobs with their logs, checkpoints and artifacts."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer
from rich.markup import escape

from rolecall.cli.completion import job_ids
from rolecall.cli.exits import Exit, exit_code
from rolecall.cli.options import Json, Token, Url, connect, parse_duration
from rolecall.cli.output import age, err, out, print_json, print_table
from rolecall.client import Refused, UnknownName
from rolecall.spec.api import PruneSummary
from rolecall.spec.numbers import size
from rolecall.spec.state import JobState


class EndState(StrEnum):
    """The states in which a job ends."""

    SUCCEEDED = JobState.SUCCEEDED.value
    FAILED = JobState.FAILED.value
    CANCELLED = JobState.CANCELLED.value


JobIds = Annotated[
    list[str],
    typer.Argument(metavar="ID…", help="Ids of the jobs, from `rolecall jobs`.", autocompletion=job_ids),
]
DeletedJson = Annotated[bool, typer.Option("--json", help="Print the ids of the deleted jobs as JSON.")]
Force = Annotated[bool, typer.Option("--force", help="Cancel jobs that have not ended, then delete them.")]
OlderThan = Annotated[
    str, typer.Option("--older-than", metavar="AGE", help="Minimum time since the end of the job: 30d, 12h, 90m, 2w.")
]
State = Annotated[EndState | None, typer.Option("--state", help="Only jobs that ended in this state.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask for confirmation.")]


def delete(  # noqa: PLR0917 - the command line is the signature
    jobs: JobIds,
    force: Force = False,
    yes: Yes = False,
    json: DeletedJson = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Delete jobs with their logs, checkpoints and artifacts.

    Asks for confirmation if stdin is a terminal. If a job can't be deleted, the others are deleted all the same.
    """
    if not yes and sys.stdin and sys.stdin.isatty():  # There is no stdin if it is closed.
        _confirm(_question(jobs, force=force))
    deleted, errors = list[str](), list[UnknownName | Refused]()
    try:
        with connect(url, token) as client:
            for job in jobs:
                try:
                    client.delete(job, force=force)
                except (UnknownName, Refused) as error:
                    errors.append(error)
                    # Almost all answers name the job and say that it can't be deleted.
                    said = str(error) if job in str(error) else f"job {job} is not deleted: {error}"
                    err.print(f"[red]rolecall:[/] {escape(said)}")
                    continue
                deleted.append(job)
                if not json:
                    out.print(f"job {escape(job)} is deleted")
    finally:
        if json and (deleted or errors):
            print_json({"deleted": deleted})
    if errors:
        raise typer.Exit(exit_code(errors[0]))


def prune(  # noqa: PLR0917 - the command line is the signature
    older_than: OlderThan,
    state: State = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Delete jobs that ended long ago. First shows the jobs and their size."""
    now = datetime.now(UTC)
    ended_before = now - parse_duration(older_than, "--older-than")
    ended_state = JobState(state) if state else None
    with connect(url, token) as client:
        found = client.prune(ended_before, ended_state, dry_run=True)
        if json:
            print_json(client.raw)
        else:
            rows = [
                (job.id, escape(job.name), job.state, f"{age(job.ended_at, now)} ago", size(job.size))
                for job in found.jobs
            ]
            print_table(("ID", "NAME", "STATE", "ENDED", "SIZE"), rows, empty="no such job ended before that time")
            if rows:
                out.print(f"{_summary(found)} in total")
        if dry_run or not found.jobs:
            return
        if not yes:
            _confirm(f"Delete {_summary(found)}?")
        # With the same `ended_before`, so that only jobs that were shown are deleted.
        done = client.prune(ended_before, ended_state, dry_run=False)
        if not json:
            out.print(f"deleted {_summary(done)}")


def _question(jobs: Sequence[str], *, force: bool = False) -> str:
    verb = "Cancel, if it has not ended, and delete" if force else "Delete"
    if len(jobs) == 1:
        return f"{verb} job {jobs[0]} with its logs, checkpoints and artifacts?"
    verb = "Cancel those that have not ended, and delete" if force else "Delete"
    return f"{verb} {len(jobs)} jobs with their logs, checkpoints and artifacts: {', '.join(jobs)}?"


def _confirm(question: str) -> None:
    """Ask the question. Ends the command if the user declines."""
    if not typer.confirm(question, err=True):
        err.print("Nothing deleted.")
        raise typer.Exit(Exit.FAILED)


def _summary(found: PruneSummary) -> str:
    return f"{len(found.jobs)} job{'s' * (len(found.jobs) != 1)} with {size(found.size)}"
