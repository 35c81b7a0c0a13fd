"""The loop of the commands that write jobs to experiment trackers: once, or until all jobs have ended."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Annotated

import typer

from rolecall.cli.completion import job_ids
from rolecall.cli.exits import CommandError, Exit
from rolecall.cli.follow import retry_while_unavailable
from rolecall.cli.output import err
from rolecall.client import Client
from rolecall.spec.errors import MissingPackage, TrackerError
from rolecall.trackers import Tracker

_POLL_S = 5.0
_POINTS = 100_000
"""The approximate maximum number of steps of each worker, more than a progress stream holds.

The master sends fewer if a job has many workers."""
Jobs = Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of the jobs.", autocompletion=job_ids)]
Follow = Annotated[bool, typer.Option("--follow", help="Add new steps until all jobs have ended.")]


def export(client: Client, jobs: Sequence[str], open_tracker: Callable[[], Tracker], *, follow: bool) -> int:
    """Write jobs to a tracker, with `follow` until all have ended. Returns the number of values."""
    try:
        with closing(open_tracker()) as tracker:
            _export(client, jobs, tracker, follow=follow)
            return tracker.count
    except MissingPackage as error:
        raise CommandError(Exit.USAGE, str(error)) from None
    except TrackerError as error:
        if error.status in {401, 403}:
            code = Exit.UNAUTHORIZED
        else:
            code = Exit.REFUSED if error.status < 500 else Exit.UNREACHABLE
        raise CommandError(code, str(error)) from None


def _export(client: Client, jobs: Sequence[str], tracker: Tracker, *, follow: bool) -> None:
    running = list(dict.fromkeys(jobs))
    try:
        while running := [job for job in running if not _write(client, job, tracker)]:
            if not follow:
                err.print(f"{len(running)} of the jobs still run; --follow adds their new steps", markup=False)
                break
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        raise typer.Exit(Exit.INTERRUPTED) from None


def _write(client: Client, job: str, tracker: Tracker) -> bool:
    """Write what is new of a job; returns whether it has ended."""
    # Get the document before the metrics: when it says that the job has ended, nothing more can follow.
    document = retry_while_unavailable(lambda: client.job(job))
    series = retry_while_unavailable(lambda: client.metrics(job, _POINTS))
    tracker.write(document, series, retry_while_unavailable(lambda: client.checkpoints(job)))
    if document.state.ended:
        tracker.forget(job)
    return document.state.ended
