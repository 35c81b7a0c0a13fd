"""The options that several commands share."""

import re
from datetime import datetime, timedelta
from typing import Annotated, NoReturn

import typer
from rich.markup import escape

from rolecall.cli.completion import job_ids
from rolecall.cli.exits import CommandError, Exit
from rolecall.cli.output import err
from rolecall.client import Client
from rolecall.client.connection import find

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
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
CLEAR_TEXT = "calls to {url} leave this machine in clear text, and contain the token"
CLEAR_TEXT_REMEDY = "set ROLECALL_TLS_CERT and ROLECALL_TLS_KEY on the master, and ROLECALL_TLS_CA here"
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Follow the job until it ends; the exit code is its outcome.")
]
FollowToEnd = Annotated[bool, typer.Option("--follow", "-f", help="Continue until the job ends.")]
JobId = Annotated[
    str, typer.Argument(metavar="ID", help="Id of the job, from `rolecall jobs`.", autocompletion=job_ids)
]


def connect(url: str | None, token: str | None) -> Client:
    """A client for the cluster that the options name. Warns if calls leave this machine in clear text."""
    connection = find(url, token)
    if connection.is_exposed():
        err.print(f"[yellow]warning:[/] {escape(CLEAR_TEXT.format(url=connection.url))}; {CLEAR_TEXT_REMEDY}")
    return Client(connection)


def parse_age(text: str, option: str, now: datetime) -> datetime:
    """The moment that is an age such as `30d`, `12h`, `90m`, `45s` or `2w` before `now`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    try:
        return now - timedelta(**{_UNITS[found[2]]: float(found[1])}) if found else _refuse(text, option)
    except OverflowError:
        return _refuse(text, option)


def _refuse(text: str, option: str) -> NoReturn:
    raise CommandError(Exit.USAGE, f"{option} {text}: write a number and a unit, such as 30d, 12h, 90m, 45s or 2w")
