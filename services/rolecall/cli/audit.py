"""`rolecall audit`: show the audit log."""

from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.markup import escape

from rolecall.cli.options import Json, Token, Url, connect, parse_duration
from rolecall.cli.output import print_json, print_table

Limit = Annotated[int, typer.Option("--limit", min=1, help="Maximum number of entries.")]
Since = Annotated[
    str | None, typer.Option("--since", metavar="AGE", help="Only entries of the last 30s, 10m, 2h, 1d …")
]


def audit(limit: Limit = 50, newer: Since = None, json: Json = False, url: Url = None, token: Token = None) -> None:
    """Show the audit log, newest first: calls that changed something, and calls that were refused."""
    since = None if newer is None else datetime.now(UTC) - parse_duration(newer, "--since")
    with connect(url, token) as client:
        found = client.audit(limit, since)
        if json:
            print_json(client.raw)
            return
    rows = [
        (
            str(entry.id),
            f"{entry.at.astimezone():%Y-%m-%d %H:%M:%S}",
            escape(entry.token or "-"),
            escape(entry.address),
            escape(entry.action),
            escape(entry.target),
            str(entry.outcome),
            str(entry.count),
        )
        for entry in found
    ]
    headings = ("ID", "AT", "TOKEN", "FROM", "ACTION", "TARGET", "STATUS", "CALLS")
    shorten = {"TOKEN": 10, "ACTION": 12, "TARGET": 14}
    print_table(headings, rows, drop=("CALLS", "FROM"), shorten=shorten, empty="the audit log has no such entries")
