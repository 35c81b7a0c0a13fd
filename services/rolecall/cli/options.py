"""The options that several commands share."""

import math
import re
from datetime import datetime, timedelta
from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError
from rich.markup import escape

from rolecall.cli.completion import job_ids
from rolecall.cli.exits import CommandError, Exit
from rolecall.cli.output import err
from rolecall.client import Client
from rolecall.client.connection import Connection, find
from rolecall.spec.bounds import AwareMoment

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_MOST_S = 36_525 * 86_400
_DURATION = "a number and a unit, such as 30d, 12h, 90m, 45s or 2w, up to 100 years"
_TIME = "a time with an offset, such as 2026-01-31T18:00:00Z"
_MOMENT = TypeAdapter[datetime](AwareMoment)
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="ROLECALL_URL",
        help="The master's URL, such as http://127.0.0.1:8080; by default a cluster of `rolecall local`.",
    ),
]
Token = Annotated[
    str | None,
    typer.Option("--token", envvar="ROLECALL_TOKEN", show_envvar=True, help="A token of the cluster."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the master's answer as JSON.")]
_GUESS = "using {url}, {why}; to use another cluster, pass --url, or change to the folder that contains its data folder"
CLEAR_TEXT = "calls to {url} leave this machine in clear text, and contain the token"
CLEAR_TEXT_REMEDY = "set ROLECALL_TLS_CERT and ROLECALL_TLS_KEY on the master, and ROLECALL_TLS_CA here"
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Follow the job until it ends; the exit code is its outcome.")
]
FollowToEnd = Annotated[bool, typer.Option("--follow", "-f", help="Continue until the job ends.")]
AGE_OR_TIME = "AGE|TIME"
SINCE = f"of the last 30s, 10m, 2h, 1d …, or since {_TIME}."
JobId = Annotated[
    str, typer.Argument(metavar="ID", help="Id of the job, from `rolecall jobs`.", autocompletion=job_ids)
]


def find_cluster(url: str | None, token: str | None) -> Connection:
    """The cluster that the options name. Says on stderr if the choice is a guess."""
    connection = find(url, token)
    if connection.guess:
        err.print(_GUESS.format(url=connection.url, why=connection.guess), markup=False)
    return connection


def connect(url: str | None, token: str | None) -> Client:
    """A client for the cluster of `find_cluster`. Warns if calls leave this machine in clear text."""
    connection = find_cluster(url, token)
    if connection.is_exposed():
        err.print(f"[yellow]warning:[/] {escape(CLEAR_TEXT.format(url=connection.url))}; {CLEAR_TEXT_REMEDY}")
    return Client(connection)


def parse_duration(text: str, option: str) -> timedelta:
    """A duration such as `30d`, `12h`, `90m`, `45s` or `2w`, of at most 100 years."""
    if (duration := _duration(text)) is None:
        raise CommandError(Exit.USAGE, f"{option} {text}: write {_DURATION}")
    return duration


def parse_since(text: str, now: datetime) -> datetime:
    """The value of `--since`: a time in ISO 8601 with an offset, or the duration before `now`."""
    if (duration := _duration(text)) is not None:
        return now - duration
    try:
        return _MOMENT.validate_python(text.strip())
    except ValidationError:
        raise CommandError(Exit.USAGE, f"--since {text}: write {_DURATION}, or {_TIME}") from None


def _duration(text: str) -> timedelta | None:
    found = re.fullmatch(r"(\d{1,10}(?:\.\d{1,10})?)([smhdw])", text.strip())
    seconds = float(found[1]) * _UNITS_S[found[2]] if found else math.inf
    return timedelta(seconds=seconds) if seconds <= _MOST_S else None
