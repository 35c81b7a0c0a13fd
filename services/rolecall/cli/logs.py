"""`rolecall logs`: print the output of a job's workers."""

import re
import sys
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from json import dumps
from typing import Annotated

import typer

from rolecall.cli.follow import log_lines, retry_while_unavailable
from rolecall.cli.options import AGE_OR_TIME, SINCE, FollowToEnd, JobId, Json, Token, Url, connect, parse_since
from rolecall.cli.output import err, print_json
from rolecall.logs import json_as_text
from rolecall.spec.role import Role
from rolecall.spec.visible import visible_log

_PLAIN = "\x1b[0m"
_PREFIX = re.compile(r"\[[a-z-]+-\d+\] ")
"""The worker that a line of a log begins with."""
OfRole = Annotated[
    str | None,
    typer.Option("--role", help="Only workers of this role.", autocompletion=lambda: [one.value for one in Role]),
]
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
    after its worker unless --no-prefix is given. A carriage return ends a line. If the job has several attempts, a line
    on stderr says so. --since uses the times of log records. Lines without a time, which a job prints, are shown unless
    an older record of the same worker follows. --tail counts only the lines that --since and --grep select.
    """
    since = None if newer is None else parse_since(newer, datetime.now(UTC)).isoformat()
    filters = {"role": role, "rank": rank, "attempt": attempt, "tail": tail, "since": since, "text": grep or None}
    query = {name: value for name, value in filters.items() if value is not None}
    with connect(url, token) as client:
        try:
            if follow:
                if attempt is None:
                    _print_earlier(retry_while_unavailable(lambda: client.job(job)).attempt)
                _print_lines(log_lines(client, job, query), prefix=not no_prefix, as_json=json)
                return
            newest = client.job(job).attempt if attempt is None else 0
            if newest:
                query["attempt"] = newest  # Another attempt can begin meanwhile.
            chunks = client.log(job, query)
            if json:
                lines = [_written(line, prefix=not no_prefix) for line in _lines(chunks)]
                print_json(lines)
                found = bool(lines)
            elif no_prefix or sys.stdout.isatty():
                found = _print_lines(_lines(chunks), prefix=not no_prefix, flush=False)
            else:
                found = _print_chunks(chunks)
            if not found and tail != 0 and not json:
                chosen = query.keys() & {"role", "rank", "since", "text"}
                err.print("no line matches" if chosen else "the workers have written nothing")
            _print_earlier(newest)
        finally:
            if sys.stdout.isatty():  # An interrupted line may have left a color.
                print(_PLAIN, end="", flush=True)


def _print_earlier(newest: int) -> None:
    """Mention the attempts before `newest`, if there are any."""
    if newest > 1:
        earlier = "--attempt 1 shows the earlier one" if newest == 2 else f"--attempt {newest - 1} shows the one before"
        err.print(f"attempt {newest} of {newest}; {earlier}")


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """The lines of a log. Not by `str.splitlines`, which also splits at form feeds and other characters."""
    decoder, begun = getincrementaldecoder("utf-8")("replace"), list[str]()
    for chunk in chunks:
        first, *others = decoder.decode(chunk).split("\n")
        begun.append(first)  # Joined only when the line is complete, because a line can have many megabytes.
        if others:
            yield "".join(begun)
            yield from others[:-1]
            begun = [others[-1]]
    if rest := "".join(begun):
        yield rest


def _print_lines(lines: Iterable[str], *, prefix: bool, as_json: bool = False, flush: bool = True) -> bool:
    """Print each line, for a terminal as `readable` returns it. Return whether there was any."""
    found, terminal = False, sys.stdout.isatty()
    for line in lines:
        found = True
        if as_json:
            print(dumps(_written(line, prefix=prefix), ensure_ascii=terminal), flush=flush)
        else:
            print(readable(line, prefix=prefix) if terminal else _written(line, prefix=prefix), flush=flush)
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


def _written(line: str, *, prefix: bool) -> str:
    return line if prefix else _split(line)[1]


def readable(line: str, *, prefix: bool = True) -> str:
    """A line of a log for people: without control characters, and with a record in JSON as text. Pure.

    With `prefix`, each line of such a record begins with its worker, like the lines of a record that was written as
    text.
    """
    worker, written = _split(line)
    begin = worker if prefix else ""
    text = json_as_text(written)
    line = begin + (written if text is None else text.replace("\n", f"\n{begin}"))
    shown = visible_log(line)
    # Each worker has its own colors, and can't conceal the lines of others.
    return shown + _PLAIN if "\x1b" in shown else shown
