"""`rolecall mlflow`: jobs as runs of an MLflow tracking server."""

from typing import Annotated

import typer

from rolecall.cli.export import Follow, Jobs, export
from rolecall.cli.options import Token, Url, connect
from rolecall.cli.output import out
from rolecall.spec.redaction import redact_text
from rolecall.trackers.mlflow import TrackedRuns

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
        count = export(client, jobs, lambda: TrackedRuns(tracking_uri, experiment), follow=follow)
    place = redact_text(tracking_uri)
    out.print(f"wrote {count} values to experiment {experiment!r} of {place}", markup=False)
