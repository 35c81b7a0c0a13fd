"""`rolecall show`: show one job in detail."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import typer
from rich.markup import escape

from rolecall.cli.events import print_event, print_heading
from rolecall.cli.follow import follow, traceback_of
from rolecall.cli.options import Follow, JobId, Json, Token, Url, connect
from rolecall.cli.output import (
    age,
    goodput,
    out,
    print_json,
    print_table,
    print_values,
    progress,
    roles,
    state,
    step_times,
)
from rolecall.cli.stored import print_checkpoints
from rolecall.client import Client, UnknownName
from rolecall.spec.api import MetricDocument, WorkloadDocument
from rolecall.spec.comparison import leaves
from rolecall.spec.event_order import in_order
from rolecall.spec.job import JobDocument
from rolecall.spec.json_schema import chosen_params
from rolecall.spec.metric import INDEX, index_in
from rolecall.spec.numbers import number
from rolecall.spec.visible import one_line

_EVENTS, _CHECKPOINTS, _NAME_CHARS = 10, 3, 11


def show(job: JobId, follow_it: Follow = False, json: Json = False, url: Url = None, token: Token = None) -> None:
    """Show a job: state, progress, scores, parameters, attempts with their workers, newest checkpoints and events.

    Parameters with their default value are omitted, and so are metrics that are no scores, which `rolecall metrics`
    shows. --json prints the job's document, which has all of them.
    """
    with connect(url, token) as client:
        if follow_it:
            raise typer.Exit(follow(client, job, as_json=json))
        document = client.job(job)
        if json:
            print_json(client.raw)
            return
        workload = _workload(client, document)
        checkpoints, events = client.checkpoints(job), client.events(job)
    now = datetime.now(UTC)
    _print_facts(document, workload.metrics if workload else (), now)
    params = chosen_params(workload.params, document.params) if workload else dict(document.params)
    if chosen := list(leaves(params)) if params else []:
        out.print("\n[bold]params[/]")
        print_values([(escape(one_line(name)), escape(one_line(value))) for name, value in chosen], indent=2)
    _print_attempts(document)
    if checkpoints:
        out.print(f"\n[bold]checkpoints[/]{_count(len(checkpoints), _CHECKPOINTS, 'rolecall checkpoints', job)}")
        print_checkpoints(checkpoints[:_CHECKPOINTS], now)
    out.print(f"\n[bold]events[/]{_count(len(events), _EVENTS, 'rolecall events', job)}")
    print_heading()
    for event in in_order(events)[-_EVENTS:]:
        print_event(event)


def _workload(client: Client, job: JobDocument) -> WorkloadDocument | None:
    """The job's workload; None if it is no longer installed, so that nothing is known about parameters and metrics."""
    try:
        return client.workload(job.workload)
    except UnknownName:
        return None


def _count(total: int, shown: int, command: str, job: str) -> str:
    return f" [dim](the last {shown} of {total}; all: {command} {escape(job)})[/]" if total > shown else ""


def _print_facts(job: JobDocument, declared: Sequence[MetricDocument], now: datetime) -> None:
    start = job.progress.start_s
    facts = {
        "job": f"{job.id} {escape(job.name)}".strip(),
        "workload": f"{job.workload} ({roles(job)})",
        "owner": escape(job.owner),
        "labels": escape(", ".join(f"{name}={value}" for name, value in job.labels.items())),
        "state": state(job),
        "reason": escape(job.reason or ""),
        "waits": escape(job.waiting_for or ""),
        "submitted": f"{age(job.created_at, now)} ago",
        "progress": progress(job.progress, is_live=job.state.holds_slots),
        "scores": _named(_scores(job.progress.metrics, declared)),
        "goodput": escape(goodput(job)),
        "steps": step_times(job.progress),
        "start": f"{start.total:.2f} s (queue {start.queue:.2f}, spawn {start.spawn:.2f}, join {start.join:.2f}, "
        f"first step {start.first_step:.2f})"
        if start
        else "",
        "result": _named(job.result or {}),
    }
    print_values([(f"[bold]{name}[/]", fact) for name, fact in facts.items() if fact], name_width=_NAME_CHARS)


def _scores(reported: Mapping[str, float], declared: Sequence[MetricDocument]) -> dict[str, float]:
    """The reported metrics that have a direction or no declaration, without those of parts, such as micro-batches."""
    others = [name for one in declared if one.direction is None or INDEX in one.name for name in one.reported.values()]
    return {name: value for name, value in reported.items() if all(index_in(name, other) is None for other in others)}


def _named(values: Mapping[str, Any]) -> str:
    """Such as `test_auc=0.9214 test_loss=0.2787`. A job's code can report any names."""
    return escape(" ".join(f"{one_line(name)}={number(value)}" for name, value in values.items()))


def _print_attempts(job: JobDocument) -> None:
    for attempt in job.attempts:
        cause = f": {escape(attempt.cause)}" if attempt.cause else ""
        out.print(f"\n[bold]attempt {attempt.number}[/] {attempt.state}{cause}")
        rows = [
            (
                str(w.rank),
                f"{w.role}-{w.role_rank}",
                escape(w.node),
                str(w.pid or ""),
                w.state,
                escape(w.failure.message if w.failure else ""),
            )
            for w in attempt.workers
        ]
        if rows:  # Old attempts have none.
            # The cause is whole above. With --json, all failures are.
            headings = ("RANK", "WORKER", "NODE", "PID", "STATE", "FAILURE")
            print_table(headings, rows, drop=("PID",), shorten={"FAILURE": 30})
        if traceback := traceback_of(attempt):
            out.print(f"\n{escape(traceback)}")
