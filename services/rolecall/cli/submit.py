"""`rolecall submit`: send a job."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from rolecall.cli.exits import CommandError, Exit
from rolecall.cli.follow import follow
from rolecall.cli.options import Json, Token, Url, connect
from rolecall.cli.output import err, print_json

File = Annotated[
    str, typer.Argument(metavar="FILE|-", help="File with the job as JSON, as for `POST /jobs`; - for stdin.")
]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Follow the job until it ends; the exit code is its outcome.")
]


def submit(file: File, follow_it: Follow = False, json: Json = False, url: Url = None, token: Token = None) -> None:
    """Submit a job and print its id.

    With --follow, progress goes to stderr and the last line of stdout shows the outcome, such as
    `embedding-ddp succeeded: test_auc=0.9187 ...`. Ctrl-C stops following, but not the job.
    """
    body = _read_job(file)
    with connect(url, token) as client:
        job = client.submit(body)
        if follow_it:
            err.print(f"job {job.id}")
            raise typer.Exit(follow(client, job.id, as_json=json))
        print_json(client.raw) if json else print(job.id)


def _read_job(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise CommandError(Exit.USAGE, f"can't read {file}: {error.strerror}") from None
