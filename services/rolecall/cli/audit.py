"""`rolecall audit`: show the audit log."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from rolecall.cli.options import AGE_OR_TIME, SINCE, Json, Token, Url, connect, parse_since
from rolecall.cli.output import Terminal, local_time, make_table, out, print_json, time_heading
from rolecall.spec.access import AuditEntry

_WIDE = 120
"""The columns of a terminal in which whole routes have room."""
_MAX_TARGET_CHARS = 64
_TIME, _BRIEF_TIME = "%Y-%m-%d %H:%M:%S", "%m-%d %H:%M:%S"

Limit = Annotated[int, typer.Option("--limit", min=1, help="Maximum number of entries.")]
Since = Annotated[str | None, typer.Option("--since", metavar=AGE_OR_TIME, help=f"Only entries {SINCE}")]


def audit(limit: Limit = 50, newer: Since = None, json: Json = False, url: Url = None, token: Token = None) -> None:
    """Show the audit log, newest first: calls that changed something, and calls that were refused."""
    now = datetime.now(UTC)
    since = None if newer is None else parse_since(newer, now)
    with connect(url, token) as client:
        found = client.audit(limit, since)
        if json:
            print_json(client.raw)
            return
    out.print(audit_table(out, found, now) if found else "the audit log has no such entries")


def audit_table(terminal: Terminal, entries: Sequence[AuditEntry], now: datetime) -> Table:
    """The entries, each on one line. A narrow terminal shows who did what to which job or token, and when."""
    is_brief = terminal.width < _WIDE
    # The year says little if it is the present one.
    time_form = _BRIEF_TIME if is_brief and all(entry.at.year == now.year for entry in entries) else _TIME
    rows = [
        (
            str(entry.id),
            local_time(entry.at, terminal, time_form),
            escape(entry.token or "-"),
            escape(entry.address),
            escape(brief_action(entry.action) if is_brief else entry.action),
            escape(entry.target),
            str(entry.outcome),
            str(entry.count),
        )
        for entry in entries
    ]
    headings = ("ID", time_heading("AT", terminal), "TOKEN", "FROM", "ACTION", "TARGET", "STATUS", "CALLS")
    # An artifact's name follows its job. A refused call can have any target, and must not take the others' room.
    targets = [entry.target.partition("/")[0] for entry in entries if entry.outcome < 400]
    target = max(map(len, targets), default=0)
    shorten = {"TOKEN": 10, "ACTION": 13, "TARGET": min(max(len("TARGET"), target), _MAX_TARGET_CHARS)}
    return make_table(headings, rows, terminal, drop=("FROM", "CALLS", "ID"), shorten=shorten)


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
