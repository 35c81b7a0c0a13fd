"""`rolecall watch`: a job's curves, progress and remaining time in the terminal, until it ends."""

import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from rolecall.cli.completion import declared_names
from rolecall.cli.curve import plot
from rolecall.cli.declarations import declared_metrics
from rolecall.cli.follow import EXITS, follow, print_outcome, retry_while_unavailable
from rolecall.cli.metrics import chosen_metrics, lines
from rolecall.cli.options import JobId, Json, Token, Url, connect
from rolecall.cli.output import Terminal, err, out, progress, state
from rolecall.client import Client
from rolecall.client.plot import metric_names, table
from rolecall.spec.api import RETENTION, Event, MetricDocument
from rolecall.spec.job import JobDocument
from rolecall.spec.metric import by_importance
from rolecall.spec.numbers import number
from rolecall.spec.visible import one_line

_POLL_S = 1.0
_MAX_CURVES = 3
_MIN_HEIGHT, _MAX_HEIGHT = 3, 9
_FURNITURE = 5
"""The lines around the curves."""
Names = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        metavar="NAME",
        help="Draw this metric; can be repeated. By default loss and scores.",
        autocompletion=declared_names,
    ),
]


def watch(job: JobId, metric: Names = None, json: Json = False, url: Url = None, token: Token = None) -> None:
    """Draw the curves of a job until it ends; the exit code is its outcome. Ctrl-C stops watching, but not the job.

    Without a terminal, print plain lines like `rolecall show --follow`.
    """
    with connect(url, token) as client:
        if json or not out.is_terminal:
            raise typer.Exit(follow(client, job, as_json=json))
        try:
            document = _draw_to_end(client, job, metric or ())
        except KeyboardInterrupt:
            err.print(f"job {job} continues; to watch it again: rolecall watch {job}")
            raise
        print_outcome(document)
        raise typer.Exit(EXITS[document.state])


def _draw_to_end(client: Client, job: str, names: Sequence[str]) -> JobDocument:
    """Draw the job once a second. Returns its last document, and leaves its last picture."""
    events = list[Event]()
    declared = retry_while_unavailable(lambda: declared_metrics(client)(client.job(job).workload))
    with Live(console=out, auto_refresh=False) as live:
        while True:
            # Get the document before the rest: when it says that the job has ended, nothing more can follow.
            document = retry_while_unavailable(lambda: client.job(job))
            seen = events[-1].id if events else 0
            events += retry_while_unavailable(lambda seen=seen: client.events(job, seen))
            rows = table(retry_while_unavailable(lambda: client.metrics(job, 2 * out.width, lowest_rank=True)))
            live.update(picture(out, document, events, rows, drawn_metrics(rows, names, declared)), refresh=True)
            if document.state.ended:
                return document
            time.sleep(_POLL_S)


def picture(
    terminal: Terminal,
    document: JobDocument,
    events: Sequence[Event],
    rows: Sequence[dict[str, Any]],
    names: Sequence[str],
) -> RenderableType:
    """The job's state, the curves of reported metrics (`names`) and its last event, in the size of the terminal.

    Events about deleted old checkpoints are omitted.
    """
    newest = document.progress
    title = f"[bold]{escape(document.id)}[/] {escape(document.name)}  {state(document)}"
    parts: list[RenderableType] = [terminal.render_str(title)]
    facts = document.waiting_for or progress(newest, is_live=document.state.holds_slots)
    if newest.steps:
        done = terminal.width * min(newest.step, newest.steps) // newest.steps
        parts.append(Text.assemble(("━" * done, "green"), ("━" * (terminal.width - done), "dim")))
    parts.append(Text(one_line(facts), no_wrap=True, overflow="ellipsis"))
    parts += _curves(terminal, rows, names)
    if last := next((event for event in reversed(events) if event.kind != RETENTION), None):
        text = f"{last.at.astimezone():%H:%M:%S} {one_line(last.message)}"
        parts.append(Text(text, style="dim", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def drawn_metrics(
    rows: Sequence[dict[str, Any]], names: Sequence[str], declared: Sequence[MetricDocument]
) -> list[str]:
    """The reported metrics to draw: those of `names`, or by default the most important ones.

    Without declarations of a direction, these are the first ones that are reported.
    """
    known = metric_names(rows)
    if names:
        # A score appears later than the loss.
        return [name for name in names if name in known] or (chosen_metrics(rows, names) if rows else [])
    chosen = [name for name in by_importance(declared) if name in known]
    return (chosen or known)[:_MAX_CURVES]


def _curves(terminal: Terminal, rows: Sequence[dict[str, Any]], names: Sequence[str]) -> Iterator[RenderableType]:
    """The curve of each metric, as its first worker reports it. A single value is a line, which leaves its room."""
    found = {name: (worker, points) for name, worker, points in reversed(lines(rows, names))}
    single = sum(len(points) == 1 for _, points in found.values())
    height = (terminal.height - _FURNITURE - single) // max(1, len(found) - single) - 2
    for name in names:
        worker, points = found[name]
        step, value = points[-1]
        newest = f"{one_line(name)} of {worker}: {number(value)}"
        if len(points) == 1:
            yield Text(f"{newest} at step {step:g}", style="bold")
            continue
        title = Text(newest, style="bold")
        drawn = plot(points, terminal.width, max(_MIN_HEIGHT, min(_MAX_HEIGHT, height)))
        yield Group(title, *(Text(line, no_wrap=True, overflow="crop") for line in drawn))
