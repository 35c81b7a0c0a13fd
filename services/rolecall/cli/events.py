"""`rolecall events`: what has happened to a job."""

import json as json_library

from rich.markup import escape

from rolecall.cli.options import FollowToEnd, JobId, Json, Token, Url, connect
from rolecall.cli.output import STYLES, out, print_json
from rolecall.client import Job
from rolecall.spec.api import Event
from rolecall.spec.folding import in_order
from rolecall.spec.visible import one_line


def events(job: JobId, follow: FollowToEnd = False, json: Json = False, url: Url = None, token: Token = None) -> None:
    """Show the events of a job; with --json --follow, print one JSON object per line."""
    with connect(url, token) as client:
        if not follow:
            found = client.events(job)
            if json:
                print_json(client.raw)
                return
            for event in in_order(found):
                print_event(event)
            return
        for event in Job(client, job).follow():
            if json:
                print(json_library.dumps(event.model_dump(mode="json")), flush=True)
            else:
                print_event(event)


def print_event(event: Event, note: str = "") -> None:
    """The event on one line, with local time, its attempt and its kind, and then the note."""
    attempt = f"attempt {event.attempt}" if event.attempt else ""
    time, style = f"{event.at.astimezone():%Y-%m-%d %H:%M:%S}", STYLES.get(event.kind, "default")
    text = " ".join(filter(None, (one_line(event.message), note)))
    out.print(f"[dim]{time}[/] {attempt:<11} [{style}]{escape(f'{event.kind:<11}')}[/] {escape(text)}")
