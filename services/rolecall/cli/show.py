"""`rolecall show`: show one job in detail."""

from typing import Annotated

import typer
from rich.markup import escape

from rolecall.cli.follow import follow
from rolecall.cli.options import JobId, Json, Token, Url, connect
from rolecall.cli.output import age, goodput, number, out, print_json, print_table, progress, roles, state
from rolecall.spec.job import JobDocument

Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Follow the job until it ends; the exit code is its outcome.")
]


def show(job: JobId, follow_it: Follow = False, json: Json = False, url: Url = None, token: Token = None) -> None:
    """Show a job: state, progress, result, and every attempt with its workers."""
    with connect(url, token) as client:
        if follow_it:
            raise typer.Exit(follow(client, job, as_json=json))
        document = client.job(job)
        if json:
            print_json(client.raw)
            return
    _print_facts(document)
    _print_attempts(document)


def _print_facts(job: JobDocument) -> None:
    start = job.progress.start_s
    facts = {
        "job": f"{job.id} {escape(job.name)}".strip(),
        "workload": f"{job.workload} ({roles(job)})",
        "owner": escape(job.owner),
        "state": state(job),
        "reason": escape(job.reason or ""),
        "waits": escape(job.waiting_for or ""),
        "submitted": f"{age(job.created_at)} ago",
        "progress": progress(job.progress, ended=job.state.ended),
        "goodput": escape(goodput(job)),
        "start": f"{start.total:.2f} s (queue {start.queue:.2f}, spawn {start.spawn:.2f}, join {start.join:.2f}, "
        f"first step {start.first_step:.2f})"
        if start
        else "",
        "result": escape(" ".join(f"{name}={number(value)}" for name, value in (job.result or {}).items())),
    }
    for name, fact in facts.items():
        if fact:
            out.print(f"[bold]{name:<12}[/] {fact}")


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
        print_table(("RANK", "WORKER", "NODE", "PID", "STATE", "FAILURE"), rows)
