"""`rolecall artifacts` and `rolecall checkpoints`: list and download what a job has stored."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from rolecall.cli.exits import CommandError, Exit
from rolecall.cli.options import JobId, Json, Token, Url, connect
from rolecall.cli.output import age, none_of, print_json, print_table, print_written
from rolecall.spec.api import Checkpoint
from rolecall.spec.numbers import size

_DIGEST_CHARS = 12
Name = Annotated[str | None, typer.Argument(metavar="NAME", help="Download this artifact.")]
To = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file; by default NAME.")]
Download = Annotated[bool, typer.Option("--download", help="Download the newest checkpoint as a ZIP archive.")]
Step = Annotated[int | None, typer.Option("--step", min=0, help="With --download: the checkpoint of this step.")]
ToArchive = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file; by default ID-step-STEP.zip.")
]


def artifacts(  # noqa: PLR0917 - the command line is the signature
    job: JobId, name: Name = None, output: To = None, json: Json = False, url: Url = None, token: Token = None
) -> None:
    """List a job's artifacts, or download one of them."""
    if output and not name:
        raise typer.BadParameter("name the artifact to download", param_hint="-o")
    with connect(url, token) as client:
        if name:
            path = output or Path(Path(name).name)
            client.download(job, name, path)
            print_json({"name": name, "path": str(path)}) if json else print_written(path)
            return
        found = client.artifacts(job)
        if json:
            print_json(client.raw)
            return
        empty = "" if found else none_of("artifacts", client.job(job))
    rows = [(one.name, size(one.size), one.sha256) for one in found]
    print_table(("NAME", "SIZE", "SHA256"), rows, shorten={"SHA256": _DIGEST_CHARS}, empty=empty)


def checkpoints(  # noqa: PLR0917 - the command line is the signature
    job: JobId,
    download: Download = False,
    step: Step = None,
    output: ToArchive = None,
    json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """List the checkpoints of a job, newest first, or download one of them."""
    if (step is not None or output) and not download:
        raise CommandError(Exit.USAGE, "--step and --output require --download")
    with connect(url, token) as client:
        found, raw = client.checkpoints(job), client.raw
        if download:
            if step is None and not found:
                raise CommandError(Exit.NOT_FOUND, none_of("checkpoints", client.job(job)))
            chosen = found[0].manifest.step if step is None else step
            path = output or Path(f"{Path(job).name}-step-{chosen}.zip")
            client.download_checkpoint(job, chosen, path)
            print_json({"step": chosen, "path": str(path)}) if json else print_written(path)
            return
        if json:
            print_json(raw)
            return
        print_checkpoints(found, datetime.now(UTC), "" if found else none_of("checkpoints", client.job(job)))


def print_checkpoints(found: list[Checkpoint], now: datetime, empty: str = "") -> None:
    rows = [
        (
            str(one.manifest.step),
            str(one.manifest.attempt),
            str(len(one.manifest.parts)),
            size(sum(part.size for part in one.manifest.parts)),
            f"{age(one.created_at, now)} ago",
            "yes" if one.manifest.keep else "",
        )
        for one in found
    ]
    print_table(("STEP", "ATTEMPT", "PARTS", "SIZE", "CREATED", "KEPT"), rows, empty=empty)
