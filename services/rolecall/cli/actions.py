"""`rolecall cancel`, `pause`, `resume`, `retry` and `update`: one request each, and the job afterwards."""

from typing import Annotated

import typer
from rich.markup import escape

from rolecall.cli.exits import CommandError, Exit
from rolecall.cli.options import JobId, Json, Token, Url, connect
from rolecall.cli.output import out, print_json, state
from rolecall.spec.bounds import MAX_PRIORITY
from rolecall.spec.state import JobState

Name = Annotated[str | None, typer.Option("--name", help="The new name.")]
Priority = Annotated[
    int | None,
    typer.Option(
        "--priority",
        min=-MAX_PRIORITY,
        max=MAX_PRIORITY,
        help="The new priority. Jobs with a higher one go first.",
    ),
]
Labels = Annotated[
    list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="Set this label; can be repeated.")
]
Removed = Annotated[
    list[str] | None, typer.Option("--remove-label", metavar="KEY", help="Remove this label; can be repeated.")
]


def cancel(job: JobId, json: Json = False, url: Url = None, token: Token = None) -> None:
    """Cancel a job in any state. Its workers are asked to stop, and are killed if they don't."""
    _act(job, "cancel", json, url, token)


def pause(job: JobId, json: Json = False, url: Url = None, token: Token = None) -> None:
    """Stop a job after a checkpoint and free its slots. `rolecall resume` continues from that checkpoint."""
    _act(job, "pause", json, url, token)


def resume(job: JobId, json: Json = False, url: Url = None, token: Token = None) -> None:
    """Queue a paused job again, or one that is still being paused. It resumes from its newest checkpoint."""
    _act(job, "resume", json, url, token)


def retry(job: JobId, json: Json = False, url: Url = None, token: Token = None) -> None:
    """Queue a failed or cancelled job again. It resumes from its newest checkpoint."""
    _act(job, "retry", json, url, token)


def update(  # noqa: PLR0917 - the command line is the signature
    job: JobId,
    name: Name = None,
    priority: Priority = None,
    labels: Labels = None,
    remove: Removed = None,
    json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Change the name, priority or labels of a job, in any state.

    A priority takes effect as long as the job is queued, and when it is queued again.
    """
    changed: dict[str, str | None] = dict.fromkeys(remove or ())
    for label in labels or ():
        key, equals, value = label.partition("=")
        if not equals:
            raise CommandError(Exit.USAGE, f"--label {label!r} has no value; use KEY=VALUE, or --remove-label {key}")
        changed[key] = value
    changes = {"name": name, "priority": priority, "labels": changed or None}
    changes = {field: value for field, value in changes.items() if value is not None}
    if not changes:
        raise CommandError(Exit.USAGE, "nothing to change; use --name, --priority, --label or --remove-label")
    with connect(url, token) as client:
        document = client.update(job, changes)
        if json:
            print_json(client.raw)
            return
    shown = ", ".join(f"{key}={value}" for key, value in document.labels.items()) or "none"
    out.print(
        f"job {document.id}: name {escape(repr(document.name))}, priority {document.priority}, labels {escape(shown)}"
    )


def _act(job: str, action: str, as_json: bool, url: str | None, token: str | None) -> None:
    with connect(url, token) as client:
        document = client.act(job, action)
        if as_json:
            print_json(client.raw)
        else:
            why = f" ({escape(document.reason)})" if document.state is JobState.STOPPING and document.reason else ""
            out.print(f"job {document.id} is {state(document)}{why}")
