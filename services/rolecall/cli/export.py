"""`rolecall mlflow` and `rolecall tensorboard`: write jobs to experiment trackers, once or until all have ended."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from rolecall.cli.completion import job_ids
from rolecall.cli.exits import CommandError, Exit
from rolecall.cli.follow import retry_while_unavailable
from rolecall.cli.options import Token, Url, connect
from rolecall.cli.output import err, out
from rolecall.client import Client
from rolecall.spec.errors import MissingPackage, TrackerError
from rolecall.spec.redaction import redact_text
from rolecall.trackers import Tracker
from rolecall.trackers.mlflow import TrackedRuns
from rolecall.trackers.tensorboard import EventFiles

_POLL_S = 5.0
_POINTS = 100_000
"""The approximate maximum number of steps of each worker, more than a progress stream holds.

The master sends fewer if a job has many workers."""
Jobs = Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of the jobs.", autocompletion=job_ids)]
Follow = Annotated[bool, typer.Option("--follow", help="Add new steps until all jobs have ended.")]
TrackingUri = Annotated[
    str,
    typer.Option(
        "--tracking-uri",
        metavar="URI",
        envvar="MLFLOW_TRACKING_URI",
        help="The tracking server, such as http://mlflow:5000, or a database, such as sqlite:///mlflow.db.",
    ),
]
Experiment = Annotated[
    str,
    typer.Option(
        "--experiment",
        metavar="NAME",
        envvar="MLFLOW_EXPERIMENT_NAME",
        help="The experiment of the runs, which is created if necessary.",
    ),
]
Folder = Annotated[Path, typer.Option("--dir", metavar="DIR", help="The folder to show with `tensorboard --logdir`.")]


def mlflow(  # noqa: PLR0917 - the command line is the signature
    jobs: Jobs,
    tracking_uri: TrackingUri,
    experiment: Experiment = "rolecall",
    follow: Follow = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Write the metrics, parameters, result and labels of jobs to an MLflow tracking server: a run for each job.

    A later call continues the run of its job. Needs an extra package: pip install 'rolecall\\[mlflow]'.
    """
    with connect(url, token) as client:
        count = _export(client, jobs, lambda: TrackedRuns(tracking_uri, experiment), follow=follow)
    place = redact_text(tracking_uri)
    out.print(f"wrote {count} values to experiment {experiment!r} of {place}", markup=False)


def tensorboard(
    jobs: Jobs, folder: Folder = Path("tensorboard"), follow: Follow = False, url: Url = None, token: Token = None
) -> None:
    """Write the metrics of jobs as event files for TensorBoard: a run for each worker of each attempt.

    Replaces the event files of earlier calls. Needs an extra package: pip install 'rolecall\\[tensorboard]'.
    """
    with connect(url, token) as client:
        count = _export(client, jobs, lambda: EventFiles(folder), follow=follow)
    out.print(f"wrote {count} values to {folder}; to see them: tensorboard --logdir {folder}", markup=False)


def _export(client: Client, jobs: Sequence[str], open_tracker: Callable[[], Tracker], *, follow: bool) -> int:
    """Write jobs to a tracker, with `follow` until all have ended. Returns the number of values."""
    try:
        with closing(open_tracker()) as tracker:
            _write_all(client, jobs, tracker, follow=follow)
            return tracker.count
    except MissingPackage as error:
        raise CommandError(Exit.USAGE, str(error)) from None
    except TrackerError as error:
        if error.status in {401, 403}:
            code = Exit.UNAUTHORIZED
        else:
            code = Exit.REFUSED if error.status < 500 else Exit.UNREACHABLE
        raise CommandError(code, str(error)) from None


def _write_all(client: Client, jobs: Sequence[str], tracker: Tracker, *, follow: bool) -> None:
    running = list(dict.fromkeys(jobs))
    while running := [job for job in running if not _write(client, job, tracker)]:
        if not follow:
            err.print(f"{len(running)} of the jobs still run; --follow adds their new steps", markup=False)
            break
        time.sleep(_POLL_S)


def _write(client: Client, job: str, tracker: Tracker) -> bool:
    """Write what is new of a job; returns whether it has ended."""
    # Get the document before the metrics: when it says that the job has ended, nothing more can follow.
    document = retry_while_unavailable(lambda: client.job(job))
    series = retry_while_unavailable(lambda: client.metrics(job, _POINTS))
    tracker.write(document, series, retry_while_unavailable(lambda: client.checkpoints(job)))
    if document.state.ended:
        tracker.forget(job)
    return document.state.ended
