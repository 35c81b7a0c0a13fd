"""`rolecall tensorboard`: the metrics of jobs as TensorBoard's event files."""

from pathlib import Path
from typing import Annotated

import typer

from rolecall.cli.export import Follow, Jobs, export
from rolecall.cli.options import Token, Url, connect
from rolecall.cli.output import out
from rolecall.trackers.tensorboard import EventFiles

Folder = Annotated[Path, typer.Option("--dir", metavar="DIR", help="The folder to show with `tensorboard --logdir`.")]


def tensorboard(
    jobs: Jobs, folder: Folder = Path("tensorboard"), follow: Follow = False, url: Url = None, token: Token = None
) -> None:
    """Write the metrics of jobs as event files for TensorBoard: a run for each worker of each attempt.

    Replaces the event files of earlier calls. Needs an extra package: pip install 'rolecall\\[tensorboard]'.
    """
    with connect(url, token) as client:
        count = export(client, jobs, lambda: EventFiles(folder), follow=follow)
    out.print(f"wrote {count} values to {folder}; to see them: tensorboard --logdir {folder}", markup=False)
