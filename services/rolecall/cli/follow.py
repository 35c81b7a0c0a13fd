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

from rolecall.cli.client import Client
from rolecall.cli.exits import CommandError, Exit
from rolecall.cli.output import err, out, outcome, print_json, progress
from rolecall.spec.job import JobDocument
from rolecall.spec.state import JobState
from rolecall.spec.visible import visible

POLL_S = 0.3
RETRY_S = 120.0
PLAIN_EVERY_S = 5.0
EXITS = {JobState.SUCCEEDED: Exit.OK, JobState.FAILED: Exit.FAILED, JobState.CANCELLED: Exit.CANCELLED}
_T = TypeVar("_T")
Show = Callable[[JobDocument], None]


def follow(client: Client, job: str, *, as_json: bool) -> Exit:
    """Show the job's progress until it ends; Ctrl-C leaves it running."""
    try:
        document, raw = follow_to_end(client, job)
    except KeyboardInterrupt:
        err.print(f"job {job} continues; to follow it again: rolecall show {job} --follow")
        return Exit.INTERRUPTED
    if as_json:
        print_json(raw)
    else:
        for line in (document.reason or "").splitlines()[1:]:
            err.print(f"[dim]{escape(line)}[/]")
        out.print(escape(outcome(document)))
    return EXITS[document.state]


def follow_to_end(client: Client, job: str) -> tuple[JobDocument, Any]:
    """Show the job's progress until it ends; returns its last document, parsed and as raw JSON."""
    with _view() as show:
        seen, shown_reason = 0, None
        while True:
            # Get the document before the events: when it says that the job has ended, no events can follow.
            document, raw = retry_while_unavailable(lambda: client.job(job)), client.raw
            for event in retry_while_unavailable(lambda after=seen: client.events(job, after)):
                err.print(f"[dim]{event.at.astimezone():%H:%M:%S}[/] {escape(event.message)}")
                seen = event.id
            if document.waiting_for and document.waiting_for != shown_reason:
                err.print(escape(document.waiting_for))
            shown_reason = document.waiting_for
            if document.state.ended:
                return document, raw
            show(document)
            time.sleep(POLL_S)


def retry_while_unavailable(request: Callable[[], _T]) -> _T:
    """The result of `request`, which is retried for `RETRY_S` while the master is unavailable."""
    timer = _RetryTimer()
    while True:
        try:
            answer = request()
        except CommandError as error:
            timer.pause(error)
        else:
            timer.reset()
            return answer


def log_lines(client: Client, job: str, query: dict[str, Any]) -> Iterator[str]:
    """The lines of a job's log until it ends; waits for an unavailable master and continues after the last line."""
    timer, last_id = _RetryTimer(), ""
    while True:
        try:
            with client.log_events(job, query, last_id) as events:
                timer.reset()
                for event in events:
                    if event.event == "end":
                        return
                    last_id = event.id
                    yield event.data
            raise CommandError(Exit.UNREACHABLE, f"{client.url} ended the log before the job ended")
        except CommandError as error:
            timer.pause(error)


class _RetryTimer:
    """Limits the retries of requests to `RETRY_S` since the master's last answer."""

    def __init__(self) -> None:
        self._unavailable_since: float | None = None

    def pause(self, error: CommandError) -> None:
        """Wait before a retry. Raises `error` if a retry can't help or the time is up."""
        if error.code is not Exit.UNREACHABLE:
            raise error
        if self._unavailable_since is None:
            self._unavailable_since = time.monotonic()
            err.print(f"[yellow]the master does not answer; retrying for {RETRY_S:.0f} s[/]")
        if time.monotonic() - self._unavailable_since > RETRY_S:
            raise error
        time.sleep(POLL_S)

    def reset(self) -> None:
        """Record that the master answers."""
        if self._unavailable_since is not None:
            err.print("the master answers again")
        self._unavailable_since = None


@contextmanager
def _view() -> Generator[Show]:
    if not err.is_terminal:
        yield _plain()
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[figures]}"))
    with Bar(*columns, console=err, transient=True) as bar:
        task = bar.add_task("", total=None, figures="")

        def show(document: JobDocument) -> None:
            newest = document.progress
            bar.update(
                task,
                description=escape(f"{document.workload} {document.state}"),
                total=newest.steps,
                completed=newest.step,
                figures=escape(visible(document.waiting_for or progress(newest))),
            )

        yield show


def _plain() -> Show:
    last = ("", 0.0)

    def show(document: JobDocument) -> None:
        nonlocal last
        line = progress(document.progress)
        if line and line != last[0] and time.monotonic() - last[1] >= PLAIN_EVERY_S:
            err.print(line)
            last = (line, time.monotonic())

    return show
