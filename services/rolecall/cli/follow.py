"""Watches one job until it ends: a bar on a terminal, plain lines elsewhere; it survives a restart of the master."""

import time
from collections.abc import Callable, Generator
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

POLL_S = 0.3
PATIENCE_S = 120.0
PLAIN_EVERY_S = 5.0
_EXITS = {JobState.SUCCEEDED: Exit.OK, JobState.FAILED: Exit.FAILED, JobState.CANCELLED: Exit.CANCELLED}
_T = TypeVar("_T")
Show = Callable[[JobDocument], None]


def follow(client: Client, job: str, *, as_json: bool) -> Exit:
    """Show the job's life until it ends; Ctrl-C leaves it running."""
    try:
        document, raw = _watch(client, job)
    except KeyboardInterrupt:
        err.print(f"job {job} goes on; follow it again: rolecall show {job} --follow")
        return Exit.INTERRUPTED
    if as_json:
        print_json(raw)
    else:
        for line in (document.reason or "").splitlines()[1:]:
            err.print(f"[dim]{escape(line)}[/]")
        out.print(escape(outcome(document)))
    return _EXITS[document.state]


def _watch(client: Client, job: str) -> tuple[JobDocument, Any]:
    """The job's last document, and as the master gave it."""
    with _view() as show:
        seen, waited = 0, None
        while True:
            # In this order: of a job that has ended all events are there.
            document, raw = _patiently(lambda: client.job(job)), client.raw
            for event in _patiently(lambda after=seen: client.events(job, after)):
                err.print(f"[dim]{event.at.astimezone():%H:%M:%S}[/] {escape(event.message)}")
                seen = event.id
            if document.waiting_for and document.waiting_for != waited:
                err.print(escape(document.waiting_for))
            waited = document.waiting_for
            if document.state.ended:
                return document, raw
            show(document)
            time.sleep(POLL_S)


def _patiently(ask: Callable[[], _T]) -> _T:
    """What `ask` returns; while the master is away, ask again for a bounded time."""
    deadline = time.monotonic() + PATIENCE_S
    told = False
    while True:
        try:
            answer = ask()
        except CommandError as error:
            if error.code is not Exit.UNREACHABLE or time.monotonic() > deadline:
                raise
            if not told:
                err.print(f"[yellow]the master does not answer; trying for {PATIENCE_S:.0f} s[/]")
            told = True
            time.sleep(POLL_S)
        else:
            if told:
                err.print("the master is back")
            return answer


@contextmanager
def _view() -> Generator[Show]:
    if not err.is_terminal:
        yield _plain()
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[figures]}"))
    with Bar(*columns, console=err, transient=True) as bar:
        task = bar.add_task("", total=None, figures="")

        def show(document: JobDocument) -> None:
            now = document.progress
            bar.update(
                task,
                description=f"{document.workload} {document.state}",
                total=now.steps,
                completed=now.step,
                figures=document.waiting_for or progress(now),
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
