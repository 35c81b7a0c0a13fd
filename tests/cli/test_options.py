"""The options that several commands share: the cluster that they use without options."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from rolecall.client.connection import Connection, announced

from .command import Done, run

GUESS = "which started last of several local clusters; to use another cluster, pass --url, or change to the folder that"
COMMANDS = ["submit -", "submit - --dry-run", "cancel x", "delete x --yes", "tokens list", "jobs", "show x", "doctor"]


def run_among(clusters: int, folder: Path, command: str, **environment: str) -> Done:
    """Run the command while these local clusters run, whose masters don't listen."""
    given = {"ROLECALL_URL": "", "ROLECALL_TOKEN": "", "ROLECALL_TOKEN_FILE": ""} | environment
    with ExitStack() as stack:
        for number in range(clusters):
            stack.enter_context(
                announced(Connection(f"http://127.0.0.{number + 1}:9", "token", data=f"{folder}/{number}"))
            )
        return run(*command.split(), given=json.dumps({"workload": "toy"}), **given)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_name_the_cluster_that_they_guess(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    said = [line for line in run_among(2, tmp_path, command).err.splitlines() if GUESS in line]
    assert len(said) == 1
    assert said[0].startswith("using http://127.0.0.")


def test_a_cluster_that_is_alone_or_named_is_no_guess(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    done = [
        run_among(1, tmp_path, "cancel x"),
        run_among(2, tmp_path, "cancel x", ROLECALL_URL="http://127.0.0.1:9"),
        run_among(2, tmp_path, "cancel x --url http://127.0.0.2:9"),
    ]
    assert [one.code for one in done] == [6, 6, 6], "no master answers"
    assert not [one.err for one in done if "using" in one.err]
