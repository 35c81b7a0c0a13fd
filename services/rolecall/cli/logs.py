"""`rolecall logs`: print the output of a job's workers."""

import re
import sys
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from json import dumps
from typing import Annotated

import typer

from rolecall.cli.follow import log_lines
from rolecall.cli.options import AGE_OR_TIME, SINCE, FollowToEnd, JobId, Json, Token, Url, connect, parse_since
from rolecall.cli.output import err, print_json
from rolecall.logs import json_as_text
from rolecall.spec.role import Role
from rolecall.spec.visible import visible_log

_PLAIN = "\x1b[0m"
_PREFIX = re.compile(r"\[[a-z-]+-\d+\] ")
"""The worker that a line of a log begins with."""
OfRole = Annotated[Role | None, typer.Option("--role", help="Only workers of this role.")]
OfRank = Annotated[int | None, typer.Option("--rank", min=0, help="Only the worker with this rank.")]
OfAttempt = Annotated[
    int | None, typer.Option("--attempt", min=1, help="Number of the attempt; by default the newest.")
]
Tail = Annotated[
    int | None, typer.Option("--tail", min=0, max=10_000, help="Only the last lines of the log, at most this many.")
]
Since = Annotated[str | None, typer.Option("--since", metavar=AGE_OR_TIME, help=f"Only lines {SINCE}")]
Grep = Annotated[
    list[str] | None,
    typer.Option(
        "--grep",
        metavar="TEXT",
        help="Only lines that contain this text as they are in the log, in upper or lower case. If it is given several "
        "times, one is enough.",
    ),
]
NoPrefix = Annotated[
    bool, typer.Option("--no-prefix", help="Omit the worker that each line begins with, for example for `jq`.")
]


def logs(  # noqa: PLR0917 - the command line is the signature
    job: JobId,
    follow: FollowToEnd = False,
    role: OfRole = None,
    rank: OfRank = None,
    attempt: OfAttempt = None,
    tail: Tail = None,
    newer: Since = None,
    grep: Grep = None,
    no_prefix: NoPrefix = False,
    json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Print the logs of a job's workers, merged by time; with --json a list of lines, and with --json --follow one
    string per line.

    A terminal shows records in JSON (ROLECALL_LOG_FORMAT) as text. A file, a pipe and --json get them as they are, each
    after its worker unless --no-prefix is given. --since uses the times of log records. Lines without a time, which a
    job prints, are shown unless an older record of the same worker follows. --tail counts only the lines that --since
    and --grep select.
    """
    since = None if newer is None else parse_since(newer, datetime.now(UTC)).isoformat()
    filters = {"role": role, "rank": rank, "attempt": attempt, "tail": tail, "since": since, "text": grep or None}
    query = {name: value for name, value in filters.items() if value is not None}
    shorten = _without_prefix if no_prefix else str
    with connect(url, token) as client:
        try:
            if follow:
                _print_lines(map(shorten, log_lines(client, job, query)), as_json=json)
                return
            chunks = client.log(job, query)
            lines = map(shorten, _lines(chunks))
            if json:
                print_json(list(lines))
                return
            as_it_is = not (no_prefix or sys.stdout.isatty())
            found = _print_chunks(chunks) if as_it_is else _print_lines(lines, flush=False)
            if not found and tail != 0:
                chosen = query.keys() & {"role", "rank", "since", "text"}
                err.print("no line matches" if chosen else "the workers have written nothing")
        finally:
            if sys.stdout.isatty():  # An interrupted line may have left a color.
                print(_PLAIN, end="", flush=True)


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """The lines of a log. Not by `str.splitlines`, which also splits at form feeds and other characters."""
    decoder, rest = getincrementaldecoder("utf-8")("replace"), ""
    for chunk in chunks:
        *whole, rest = (rest + decoder.decode(chunk)).split("\n")
        yield from whole
    if rest:
        yield rest


def _print_lines(lines: Iterable[str], *, as_json: bool = False, flush: bool = True) -> bool:
    """Print each line, for a terminal as `readable` returns it. Return whether there was any."""
    found, terminal = False, sys.stdout.isatty()
    shown = readable if terminal else str
    for line in lines:
        found = True
        print(dumps(line, ensure_ascii=terminal) if as_json else shown(line), flush=flush)
    return found


def _print_chunks(chunks: Iterable[bytes]) -> bool:
    """Print a log as it is. Return whether there was anything."""
    found = False
    for chunk in chunks:
        found = True
        sys.stdout.buffer.write(chunk)
    sys.stdout.flush()
    return found


def _split(line: str) -> tuple[str, str]:
    """The worker in brackets that a line begins with, empty if there is none, and what the worker has written."""
    found = _PREFIX.match(line)
    return ("", line) if found is None else (found[0], line[found.end() :])


def _without_prefix(line: str) -> str:
    return _split(line)[1]


def readable(line: str) -> str:
    """A line of a log for people: without control characters, and with a record in JSON as text. Pure.

    Each line of such a record begins with its worker, like the lines of a record that was written as text.
    """
    prefix, written = _split(line)
    if (text := json_as_text(written)) is not None:
        line = prefix + text.replace("\n", f"\n{prefix}")
    shown = visible_log(line)
    # Each worker has its own colors, and can't conceal the lines of others.
    return shown + _PLAIN if "\x1b" in shown else shown
