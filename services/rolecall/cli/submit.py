"""`rolecall submit`: send a job, or only plan it."""

import time
from typing import Annotated

import typer
from rich.markup import escape

from rolecall.cli.exits import CommandError, Exit
from rolecall.cli.follow import follow
from rolecall.cli.job_file import File, Set, changed_job
from rolecall.cli.options import Follow, Json, Token, Url, connect
from rolecall.cli.output import err, out, print_json, print_table
from rolecall.client import Client, ClientError
from rolecall.spec.job import JobPlan
from rolecall.spec.state import JobState

_REASON_S, _POLL_S = 1.0, 0.1
_UNCHECKED = "its nodes check files, environments and code of its own when it starts"

Wait = Annotated[bool, typer.Option("--wait", help="Like --follow, without events and progress.")]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Check the job without creating it, and show where its workers would run. Only its nodes can check files, "
        "environments and code of its own.",
    ),
]


def submit(  # noqa: PLR0917 - the command line is the signature
    file: File,
    sets: Set = None,
    dry_run: DryRun = False,
    follow_it: Follow = False,
    wait: Wait = False,
    json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Submit a job and print its id.

    With --follow, progress goes to stderr and the last line of stdout shows the outcome, such as
    `embedding-ddp succeeded: test_auc=0.9187 ...`. Ctrl-C stops following, but not the job.
    """
    if dry_run and (follow_it or wait):
        raise CommandError(Exit.USAGE, "--dry-run creates no job; omit --follow and --wait")
    body = changed_job(file, sets or ())
    with connect(url, token) as client:
        if dry_run:
            plan = client.plan(body)
            print_json(client.raw) if json else _print_plan(plan)
            return
        submitted = client.submit(body)
        if follow_it or wait:
            err.print(f"job {submitted.id}")
            raise typer.Exit(follow(client, submitted.id, as_json=json, quiet=wait and not follow_it))
        print_json(client.raw) if json else print(submitted.id, flush=True)
        if reason := _reason_to_wait(client, submitted.id):
            err.print(f"the job is queued: {escape(reason)}")


def _reason_to_wait(client: Client, job: str) -> str | None:
    """The reason why the new job stays queued, if the master soon has one. The job exists, so an error is not shown."""
    deadline = time.monotonic() + _REASON_S
    try:
        while (left_s := deadline - time.monotonic()) > 0:
            document = client.job(job, timeout_s=left_s)
            if document.state is not JobState.QUEUED:
                break
            if document.waiting_for:
                return document.waiting_for
            time.sleep(_POLL_S)
    except ClientError:
        pass
    return None


def _print_plan(plan: JobPlan) -> None:
    if plan.waiting_for:
        out.print(f"the job is valid; it would wait: {escape(plan.waiting_for)}")
        out.print(_UNCHECKED)
        return
    out.print("the job is valid; it would start now:")
    rows = [
        (str(one.rank), f"{one.role}-{one.role_rank}", escape(one.node), str(one.threads), one.gpu or "-")
        for one in plan.workers
    ]
    print_table(("RANK", "WORKER", "NODE", "THREADS", "GPU"), rows)
    out.print(_UNCHECKED)
