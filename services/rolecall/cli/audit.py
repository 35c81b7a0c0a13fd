"""`rolecall audit`: show the audit log."""

from typing import Annotated

import typer
from rich.markup import escape

from rolecall.cli.options import Json, Token, Url, connect
from rolecall.cli.output import print_json, print_table

Limit = Annotated[int, typer.Option("--limit", min=1, max=1000, help="Maximum number of entries.")]
After = Annotated[int | None, typer.Option("--after", min=0, help="Only entries with greater ids, oldest first.")]


def audit(limit: Limit = 50, after: After = None, json: Json = False, url: Url = None, token: Token = None) -> None:
    """Show the newest entries of the audit log: calls that changed something, and calls that were refused."""
    with connect(url, token) as client:
        found = client.audit(limit, after)
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
    print_table(headings, rows, empty="the audit log has no such entries")
