"""Assembles the command line from its commands."""

import sys
from io import TextIOWrapper

import typer
from rich.markup import escape

from rolecall import __version__
from rolecall.cli.actions import cancel, pause, resume, retry, update
from rolecall.cli.audit import audit
from rolecall.cli.choices import Commands
from rolecall.cli.compare import compare
from rolecall.cli.deletion import delete, prune
from rolecall.cli.doctor import doctor
from rolecall.cli.events import events
from rolecall.cli.exits import CommandError, exit_code
from rolecall.cli.export import mlflow, tensorboard
from rolecall.cli.inspect import profile, stacks, timeline
from rolecall.cli.jobs import jobs
from rolecall.cli.local import local
from rolecall.cli.logs import logs
from rolecall.cli.metrics import metrics
from rolecall.cli.nodes import nodes
from rolecall.cli.output import err
from rolecall.cli.schedule import schedule
from rolecall.cli.show import show
from rolecall.cli.stored import artifacts, checkpoints
from rolecall.cli.submit import submit
from rolecall.cli.sweep import sweep
from rolecall.cli.tokens import tokens
from rolecall.cli.top import top
from rolecall.cli.watch import watch
from rolecall.cli.workloads import workloads
from rolecall.client import ClientError

_EPILOG = (
    "Exit codes: 0 success, 1 job failed, doctor found an error or deletion declined, 2 invalid usage, "
    "3 job cancelled, 4 not found, 5 refused, 6 master unreachable, 7 token missing or invalid, "
    "130 interrupted (a followed job continues; the job of a sweep is cancelled)."
)

app = typer.Typer(
    name="rolecall",
    cls=Commands,
    help="Train PyTorch models whose processes play different roles: parameter servers, trainers, stages, observers.",
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_LOOK = (
    jobs,
    show,
    watch,
    logs,
    events,
    metrics,
    tensorboard,
    mlflow,
    checkpoints,
    artifacts,
    compare,
    timeline,
    stacks,
    profile,
)
_STEER = (cancel, pause, resume, retry, update, delete, prune)
for command in (local, submit, sweep, *_LOOK, *_STEER, top, nodes, doctor, workloads, schedule, audit):
    # Typer breaks the lines of all paragraphs but the first where the docstring does.
    paragraphs = (command.__doc__ or "").split("\n\n")
    app.command(help="\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs))(command)
app.add_typer(tokens)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:  # pyright: ignore[reportUnusedFunction]
    if version:
        print(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line; an error becomes a message on stderr and its exit code."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal may lack characters of another user's texts.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except (CommandError, ClientError) as error:
        err.print(f"[red]rolecall:[/] {escape(str(error))}")
        sys.exit(exit_code(error))
