"""`rolecall timeline`, `stacks` and `profile`: what the workers of a job do at the moment."""

import time
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.markup import escape

from rolecall.cli.exits import CommandError, Exit
from rolecall.cli.options import JobId, Json, Token, Url, connect
from rolecall.cli.output import err, out, print_json, print_written
from rolecall.client import Client
from rolecall.spec.inspection import MAX_PROFILED_STEPS, Silent, ThreadStack
from rolecall.spec.role import Role

_POLL_S = 0.5
_SUFFIXES = {"trace": "timeline.trace.json", "svg": "timeline.svg", "json": "timeline.json", "schedule": "schedule.svg"}
Form = Annotated[
    Literal["trace", "svg", "json", "schedule"],
    typer.Option(
        "--format",
        help="trace: for https://ui.perfetto.dev; svg: a picture; schedule: a pipeline, measured and planned; json.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write to this file; by default ID-timeline.trace.json, .svg or .json, or ID-schedule.svg.",
    ),
]
Steps = Annotated[
    int | None, typer.Option("--steps", min=1, max=64, help="Include only this many of the newest steps.")
]

Everything = Annotated[
    bool, typer.Option("--all", help="Also show the threads and calls that every worker of Rolecall has.")
]
_REPORTING = {"beat": "/rolecall/worker/outputs.py:", "measurements": "/rolecall/runtime/measuring.py:"}
"""The threads that report to the node, with the files of their functions."""
_FORK_SERVER = "/rolecall/worker/fork_server.py:"
PathJson = Annotated[bool, typer.Option("--json", help="Print the path of the file as JSON.")]


def timeline(  # noqa: PLR0917 - the command line is the signature
    job: JobId,
    form: Form = "trace",
    output: Output = None,
    steps: Steps = None,
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=1, help="The timeline of this attempt; by default of the newest.")
    ] = None,
    json: PathJson = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Save a timeline of each worker's recent steps. Ended jobs have one too, unless their workers were killed."""
    path = output or Path(f"{Path(job).name}-{_SUFFIXES[form]}")
    with connect(url, token) as client:
        chosen = {"steps": steps, "attempt": attempt}
        client.save_timeline(job, {"format": form} | {name: of for name, of in chosen.items() if of is not None}, path)
    print_json({"format": form, "path": str(path)}) if json else print_written(path)


def stacks(
    job: JobId, everything: Everything = False, json: Json = False, url: Url = None, token: Token = None
) -> None:
    """Show the stack traces of a job's running workers, for example to find out why the job hangs.

    The threads that report to the node, and the calls that start a worker, are omitted.
    """
    with connect(url, token) as client:
        found = client.stacks(job)
        if json:
            print_json(client.raw)
            return
    for worker in found.workers:
        for thread in worker.threads if everything else relevant(worker.threads):
            out.print(f"{worker.role}-{worker.role_rank} on {worker.node}, {thread.thread}", style="bold", markup=False)
            for frame in thread.frames:
                out.print(f"  {frame}", markup=False)
    _print_silent(found.silent)


def relevant(threads: Iterable[ThreadStack]) -> Iterator[ThreadStack]:
    """The threads without those that every worker has, and their calls without those that start a worker. Pure."""
    for thread in threads:
        file = _REPORTING.get(thread.thread)
        if file is None or not any(file in frame for frame in thread.frames):
            own = tuple(takewhile(lambda frame: _FORK_SERVER not in frame, thread.frames))
            yield thread.model_copy(update={"frames": own}) if own else thread


def profile(  # noqa: PLR0917 - the command line is the signature
    job: JobId,
    role: Annotated[
        Role | None, typer.Option("--role", help="Only this role; by default one worker of each that runs steps.")
    ] = None,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="The rank in its role; 0 by default.")] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, max=MAX_PROFILED_STEPS, help="Steps to record.")] = 20,
    timeout_s: Annotated[float, typer.Option("--timeout", min=1, help="Seconds to wait for the profile.")] = 300,
    json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Record the next steps of a running worker with torch.profiler, and download the trace for Perfetto."""
    with connect(url, token) as client:
        before = {one.name: one.sha256 for one in client.artifacts(job)}
        started = client.profile(job, {"role": role, "role_rank": rank, "steps": steps})
        if json:
            print_json(client.raw)
        _print_silent(started.silent)
        if not started.workers:
            raise CommandError(Exit.REFUSED, f"no worker of {job} records a profile")
        deadline = time.monotonic() + timeout_s
        for worker in started.workers:
            _await_artifact(client, job, worker.artifact, before.get(worker.artifact), deadline)
            path = Path(f"{Path(job).name}-{Path(worker.artifact).name}")
            client.download(job, worker.artifact, path)
            if not json:
                print_written(path)


def _await_artifact(client: Client, job: str, name: str, before: str | None, deadline: float) -> None:
    """Wait until the job has a new artifact of this name."""
    while True:
        digest = next((one.sha256 for one in client.artifacts(job) if one.name == name), None)
        if digest not in (None, before):
            return
        if client.job(job).state.ended or time.monotonic() > deadline:
            hint = f"see `rolecall show {job}` for its events"
            raise CommandError(Exit.FAILED, f"the profile {name} did not arrive; {hint}")
        time.sleep(_POLL_S)


def _print_silent(silent: tuple[Silent, ...]) -> None:
    for one in silent:
        worker = escape(f"{one.role}-{one.role_rank} on {one.node}")
        err.print(f"[yellow]no answer from {worker}:[/] {escape(one.reason)}")
