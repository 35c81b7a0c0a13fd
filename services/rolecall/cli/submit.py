"""`rolecall submit`: send a job."""

from json import dumps
from typing import Annotated

import typer

from rolecall.cli.follow import follow
from rolecall.cli.job_file import File, parse_job, parse_setting, read_job, single_value, with_value
from rolecall.cli.options import Json, Token, Url, connect
from rolecall.cli.output import err, print_json

Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Follow the job until it ends; the exit code is its outcome.")
]


Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Replace a field of the job, such as params.batch_size=64. The value is JSON or text. Can be repeated.",
    ),
]


def submit(  # noqa: PLR0917 - the command line is the signature
    file: File,
    sets: Set = None,
    follow_it: Follow = False,
    json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Submit a job and print its id.

    With --follow, progress goes to stderr and the last line of stdout shows the outcome, such as
    `embedding-ddp succeeded: test_auc=0.9187 ...`. Ctrl-C stops following, but not the job.
    """
    body = read_job(file)
    if sets:
        job = parse_job(file, body)
        for path, values in map(parse_setting, sets):
            job = with_value(job, path, single_value(path, values))
        body = dumps(job).encode()
    with connect(url, token) as client:
        submitted = client.submit(body)
        if follow_it:
            err.print(f"job {submitted.id}")
            raise typer.Exit(follow(client, submitted.id, as_json=json))
        print_json(client.raw) if json else print(submitted.id)
