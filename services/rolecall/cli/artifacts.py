"""`rolecall artifacts`: list and download the files of a job."""

from pathlib import Path
from typing import Annotated

import typer

from rolecall.cli.options import JobId, Json, Token, Url, connect
from rolecall.cli.output import none_of, print_json, print_table, print_written
from rolecall.spec.numbers import size

_DIGEST_CHARS = 12
Name = Annotated[str | None, typer.Argument(metavar="NAME", help="Download this artifact.")]
To = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file; by default NAME.")]


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
