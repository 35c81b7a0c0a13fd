"""`rolecall logs`: print the output of a job's workers."""

import sys
from codecs import getincrementaldecoder
from json import dumps
from typing import Annotated

import typer

from rolecall.cli.exits import Exit
from rolecall.cli.follow import log_lines
from rolecall.cli.options import JobId, Json, Token, Url, connect
from rolecall.cli.output import print_json
from rolecall.spec.role import Role
from rolecall.spec.visible import visible_log

Follow = Annotated[bool, typer.Option("--follow", "-f", help="Continue until the job ends.")]
OfRole = Annotated[Role | None, typer.Option("--role", help="Only workers of this role.")]
OfRank = Annotated[int | None, typer.Option("--rank", min=0, help="Only the worker with this rank.")]
OfAttempt = Annotated[
    int | None, typer.Option("--attempt", min=1, help="Number of the attempt; by default the newest.")
]


def logs(  # noqa: PLR0917 - the command line is the signature
    job: JobId,
    follow: Follow = False,
    role: OfRole = None,
    rank: OfRank = None,
    attempt: OfAttempt = None,
    json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Print the logs of a job's workers; with --json a list of lines, and with --json --follow one string per line."""
    filters = {"role": role, "rank": rank, "attempt": attempt}
    query = {name: value for name, value in filters.items() if value is not None}
    terminal = sys.stdout.isatty()
    shown = visible_log if terminal else str
    with connect(url, token) as client:
        try:
            if follow:
                for line in log_lines(client, job, query):
                    print(dumps(line, ensure_ascii=terminal) if json else shown(line), flush=True)
            elif json:
                # Not str.splitlines, which also splits at form feeds and other characters.
                text = b"".join(client.log(job, query)).decode(errors="replace")
                print_json(text.removesuffix("\n").split("\n") if text else [])
            else:
                decoder = getincrementaldecoder("utf-8")("replace")
                for chunk in client.log(job, query):
                    if terminal:
                        sys.stdout.write(visible_log(decoder.decode(chunk)))
                    else:
                        sys.stdout.buffer.write(chunk)
                sys.stdout.flush()
        except KeyboardInterrupt:
            raise typer.Exit(Exit.INTERRUPTED) from None
