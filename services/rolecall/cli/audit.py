"""`rolecall audit`: show the audit log."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from rolecall.cli.options import Json, Token, Url, connect, parse_duration
from rolecall.cli.output import Terminal, make_table, out, print_json
from rolecall.spec.access import AuditEntry

_WIDE = 120
"""The columns of a terminal in which whole routes have room."""
_MAX_TARGET_CHARS = 64

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
    out.print(audit_table(out, found) if found else "the audit log has no such entries")


def audit_table(terminal: Terminal, entries: Sequence[AuditEntry]) -> Table:
    """The entries, each on one line. A narrow terminal shows who did what to which job or token, and when."""
    is_brief = terminal.width < _WIDE
    rows = [
        (
            str(entry.id),
            _time(entry, is_brief=is_brief),
            escape(entry.token or "-"),
            escape(entry.address),
            escape(brief_action(entry.action) if is_brief else entry.action),
            escape(entry.target),
            str(entry.outcome),
            str(entry.count),
        )
        for entry in entries
    ]
    headings = ("ID", "AT", "TOKEN", "FROM", "ACTION", "TARGET", "STATUS", "CALLS")
    # An artifact's name follows its job.
    target = max(len(entry.target.partition("/")[0]) for entry in entries)
    shorten = {"TOKEN": 10, "ACTION": 13, "TARGET": min(max(len("TARGET"), target), _MAX_TARGET_CHARS)}
    return make_table(headings, rows, terminal, drop=("FROM", "CALLS", "ID"), shorten=shorten)


def _time(entry: AuditEntry, *, is_brief: bool) -> str:
    """The local time, without the year if it is the present one and there is little room."""
    at = entry.at.astimezone()
    return (
        f"{at:%m-%d %H:%M:%S}"
        if is_brief and at.year == datetime.now().astimezone().year
        else f"{at:%Y-%m-%d %H:%M:%S}"
    )


def brief_action(action: str) -> str:
    """The method and the end of a route, whose beginning says little: the target is next to it. Pure.

    Such as `POST …/cancel` for `POST /jobs/{job}/cancel`, and `DELETE {job}` for `DELETE /jobs/{job}`.
    """
    method, _, route = action.partition(" ")
    _, variable, end = route.partition("{")
    if not variable:
        return action
    name, _, end = end.partition("}")
    return f"{method} …{end}" if end else f"{method} {{{name}}}"
