"""Follow a job until it ends, with a progress bar on a terminal and plain lines elsewhere; retries while the master
is unavailable.
"""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from rich.markup import escape
from rich.progress import BarColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Column

from rolecall.cli.declarations import declared_metrics
from rolecall.cli.exits import Exit
from rolecall.cli.output import err, out, outcome, print_json, progress
from rolecall.client import Client, Unreachable
from rolecall.client.patience import Patience
from rolecall.spec.api import RETENTION, Event
from rolecall.spec.job import AttemptDocument, JobDocument
from rolecall.spec.report import cause_prefix, error_of
from rolecall.spec.state import JobState
from rolecall.spec.visible import visible

POLL_S = 0.3
PLAIN_EVERY_S = 5.0
_BAR_WIDTH = 12
_WIDE = 120
"""The columns of a terminal in which all figures have room next to the bar."""
_FURNITURE = _BAR_WIDTH + max(map(len, JobState)) + 4
"""The columns of the spinner, the state, the bar and the gaps between them."""
EXITS = {JobState.SUCCEEDED: Exit.OK, JobState.FAILED: Exit.FAILED, JobState.CANCELLED: Exit.CANCELLED}
_T = TypeVar("_T")
Show = Callable[[JobDocument, str], None]
"""Shows a job and its figures. An ended job hides the bar."""


def follow(client: Client, job: str, *, as_json: bool, quiet: bool = False) -> Exit:
    """Show the job's progress until it ends, or with `quiet` only its outcome. Ctrl-C leaves it running."""
    try:
        document, raw = wait_for_end(client, job) if quiet else follow_to_end(client, job)
    except KeyboardInterrupt:
        err.print(f"job {job} continues; to follow it again: rolecall show {job} --follow")
        return Exit.INTERRUPTED
    if as_json:
        print_json(raw)
    else:
        print_outcome(document)
    return EXITS[document.state]


def print_outcome(document: JobDocument) -> None:
    """The outcome of an ended job as one line on stdout, and on stderr the command that shows more of a failure."""
    out.print(escape(outcome(document)))
    if document.state is JobState.FAILED and document.attempts:
        if traceback_of(document.attempts[-1]):
            err.print(f"for the traceback: rolecall show {document.id}")
        else:
            err.print(f"for the output of its workers: rolecall logs {document.id}")


def traceback_of(attempt: AttemptDocument) -> str:
    """The traceback of the worker that caused the end of an attempt; empty without one."""
    cause = attempt.cause or ""
    found = (w for w in attempt.workers if cause.startswith(cause_prefix(w.role, w.role_rank, w.node)))
    failure = next((w.failure for w in found if w.failure), None)
    return failure.traceback if failure else ""


def wait_for_end(client: Client, job: str) -> tuple[JobDocument, Any]:
    """The last document of the job, parsed and as raw JSON. Says on stderr what the job waits for."""
    said = None
    while not (document := retry_while_unavailable(lambda: client.job(job))).state.ended:
        if document.waiting_for and document.waiting_for != said:
            said = document.waiting_for
            err.print(f"the job is queued: {escape(said)}")
        time.sleep(POLL_S)
    return document, client.raw


def follow_to_end(client: Client, job: str) -> tuple[JobDocument, Any]:
    """Show the job's progress until it ends; returns its last document, parsed and as raw JSON."""
    metrics_of = declared_metrics(client)
    with view() as show:
        seen, shown_event, shown_reason, shown = 0, None, None, set[tuple[int | None, str]]()
        while True:
            document, raw, events = _news(client, job, seen)
            if document.state.ended:
                show(document, "")  # First, because the bar stays below the events that are printed.
            for event in events:
                # An attempt and its job often end for the same error. Workers' events can come in between, and another
                # worker can turn out to have had it first.
                error = (event.attempt, error_of(event.message))
                said = event.kind == JobState.FAILED and error in shown
                if event.kind != RETENTION and event.message != shown_event and not said:
                    err.print(f"[dim]{event.at.astimezone():%H:%M:%S}[/] {escape(event.message)}")
                    shown_event = event.message
                    shown.add(error)
                seen = event.id
            if document.waiting_for and document.waiting_for != shown_reason:
                err.print(escape(document.waiting_for))
            shown_reason = document.waiting_for
            if document.state.ended:
                return document, raw
            declared = retry_while_unavailable(lambda name=document.workload: metrics_of(name))
            is_live = document.state.holds_slots
            show(document, progress(document.progress, declared, is_live=is_live, room=_room()))
            time.sleep(POLL_S)


def _news(client: Client, job: str, seen: int) -> tuple[JobDocument, Any, list[Event]]:
    """The job's document, also as raw JSON, and the events after `seen`.

    The document is never older than an event that has ended the job.
    """
    ended = False
    while True:
        # Get the document before the events: when it says that the job has ended, no events can follow.
        document, raw = retry_while_unavailable(lambda: client.job(job)), client.raw
        events = retry_while_unavailable(lambda: client.events(job, seen))
        # Only once more: an attempt that failed can have such an event, too.
        if ended or document.state.ended or not any(event.kind in EXITS for event in events):
            return document, raw, events
        ended = True


def retry_while_unavailable(request: Callable[[], _T]) -> _T:
    """The result of `request`, which is retried for two minutes while the master is unavailable."""
    return Patience(_say).call(request)


def log_lines(client: Client, job: str, query: dict[str, Any]) -> Iterator[str]:
    """The lines of a job's log until it ends; waits for an unavailable master and continues after the last line."""
    patience, last_id = Patience(_say), ""
    while True:
        try:
            with client.log_events(job, query, last_id) as events:
                patience.reset()
                for event in events:
                    if event.event == "end":
                        return
                    last_id = event.id
                    yield event.data
            raise Unreachable(f"{client.url} ended the log before the job ended")
        except Unreachable as error:
            patience.pause(error)


def _say(message: str) -> None:
    err.print(f"[yellow]{escape(message)}[/]")


@contextmanager
def view() -> Generator[Show]:
    """Shows progress: as a bar on a terminal, and as a line from time to time elsewhere."""
    if not err.is_terminal:
        yield _plain()
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", table_column=Column(no_wrap=True)),
        BarColumn(_BAR_WIDTH, finished_style="green"),  # The default is gray in a terminal with 16 colors.
        TextColumn("{task.fields[figures]}", table_column=Column(ratio=1, no_wrap=True)),
    )
    with Bar(*columns, console=err, transient=True, expand=True) as bar:
        task = bar.add_task("", total=None, visible=False, figures="")  # There is no state yet.

        def show(document: JobDocument, figures: str) -> None:
            newest = document.progress
            bar.update(
                task,
                refresh=document.state.ended,
                visible=not document.state.ended,
                description=escape(document.state),
                total=newest.steps,
                completed=newest.step,
                figures=escape(visible(document.waiting_for or figures)),
            )

        yield show


def _room() -> int | None:
    """The characters for the figures next to the bar; None without a terminal, or if all have room."""
    return err.width - _FURNITURE if err.is_terminal and err.width < _WIDE else None


def _plain() -> Show:
    last = ("", 0.0)

    def show(document: JobDocument, figures: str) -> None:
        nonlocal last
        if figures and figures != last[0] and time.monotonic() - last[1] >= PLAIN_EVERY_S:
            err.print(escape(figures))
            last = (figures, time.monotonic())

    return show
