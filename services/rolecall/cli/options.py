"""The options that all commands share."""

from typing import Annotated

import typer

from rolecall.cli.completion import job_ids
from rolecall.client import Client
from rolecall.client.connection import find

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="ROLECALL_URL",
        help="The master's URL, such as http://127.0.0.1:8080; by default the cluster of `rolecall local`.",
    ),
]
Token = Annotated[
    str | None,
    typer.Option("--token", envvar="ROLECALL_TOKEN", show_envvar=True, help="A token of the cluster."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the master's answer as JSON.")]
JobId = Annotated[
    str, typer.Argument(metavar="ID", help="Id of the job, from `rolecall jobs`.", autocompletion=job_ids)
]


def connect(url: str | None, token: str | None) -> Client:
    """A client for the cluster that the options name."""
    return Client(find(url, token))
