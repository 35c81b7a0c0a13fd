"""`rolecall events`: what has happened to a job."""

import json as json_library

from rich.markup import escape
from rich.table import Table

from rolecall.cli.options import FollowToEnd, JobId, Json, Token, Url, connect
from rolecall.cli.output import STYLES, local_time, out, print_json, time_heading, width
from rolecall.client import Job
from rolecall.spec.api import Event
from rolecall.spec.event_order import in_order
from rolecall.spec.visible import one_line

_LEAST_MESSAGE_CHARS = 16
"""A narrower terminal wraps whole lines instead of messages."""


def events(job: JobId, follow: FollowToEnd = False, json: Json = False, url: Url = None, token: Token = None) -> None:
    """Show the events of a job; with --json --follow, print one JSON object per line."""
    with connect(url, token) as client:
        if not follow:
            found = client.events(job)
            if json:
                print_json(client.raw)
                return
            print_heading()
            for event in in_order(found):
                print_event(event)
            return
        if not json:
            print_heading()
        for event in Job(client, job).follow():
            if json:
                print(json_library.dumps(event.model_dump(mode="json")), flush=True)
            else:
                print_event(event)


def print_heading() -> None:
    """The headings of events, with the time zone; on a terminal only, because programs read one event per line."""
    if out.is_bounded:
        out.print(f"[bold]{time_heading('TIME', out):<19} {'ATTEMPT':<11} {'KIND':<11} MESSAGE[/]")


def print_event(event: Event) -> None:
    """The event on one line, with local time, its attempt and its kind, and then the message.

    On a terminal, a long message continues below itself. A message that only repeats the kind is omitted.
    """
    attempt = f"attempt {event.attempt}" if event.attempt else ""
    time, style = local_time(event.at, out), STYLES.get(event.kind, "default")
    text = "" if event.message == event.kind else escape(one_line(event.message))
    kind = escape(f"{event.kind:<11}" if text else event.kind)
    facts = (f"[dim]{time}[/]", f"{attempt:<11}", f"[{style}]{kind}[/]")
    if not text or sum(map(width, facts)) + len(facts) + _LEAST_MESSAGE_CHARS > out.width or not out.is_bounded:
        out.print(" ".join(filter(None, (*facts, text))))
        return
    grid = Table.grid(padding=(0, 1, 0, 0))
    for fact in facts:
        grid.add_column(no_wrap=True, min_width=width(fact))
    grid.add_column(overflow="fold")
    grid.add_row(*facts, text)
    out.print(grid)
