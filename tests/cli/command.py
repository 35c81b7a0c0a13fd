"""The command in the process of a test, with a master of the harness."""

import asyncio
from dataclasses import dataclass

from tests.conftest import Cluster
from tests.master.harness import TOKEN, Client
from typer.testing import CliRunner

from rolecall.cli.app import app
from rolecall.cli.exits import CommandError, exit_code
from rolecall.client import ClientError


@dataclass(frozen=True, slots=True)
class Done:
    """The output of a command, and its exit code."""

    code: int
    out: str
    err: str


def run(*arguments: str, given: str = "", **environment: str) -> Done:
    """Run the command."""
    done = CliRunner().invoke(app, arguments, input=given, env=environment, prog_name="rolecall")
    if isinstance(done.exception, CommandError | ClientError):
        return Done(exit_code(done.exception), done.stdout, f"{done.stderr}rolecall: {done.exception}\n")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Done(done.exit_code, done.stdout, done.stderr)


async def run_at(master: Client, *arguments: str, **given: str) -> Done:
    """Run the command with this master, while it serves."""
    connection = {"ROLECALL_URL": str(master.http.base_url), "ROLECALL_TOKEN": TOKEN}
    return await asyncio.to_thread(lambda: run(*arguments, **connection, **given))


def run_with(cluster: Cluster, *arguments: str, given: str = "", **environment: str) -> Done:
    """Run the command with this cluster. A process of its own would need a second and a half to import it."""
    connection = {"ROLECALL_URL": cluster.url, "ROLECALL_TOKEN": cluster.token}
    return run(*arguments, given=given, **(connection | environment))
