# pyright: standard
"""`rolecall local`: its programs and their environments, its folder, port and data roots, and how it starts.

`test_commands` tests a cluster that runs.
"""

import json
import os
import socket
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path
from typing import Any, cast

import pytest
from tests.conftest import ROLECALL

from rolecall.cli import local
from rolecall.cli.exits import CommandError, Exit
from rolecall.cli.local import (
    _data_folder_token,
    _data_roots,
    _first_ephemeral_port,
    _free_port,
    _live_nodes,
    _lock,
    _progress,
    _wait_until_ready,
    cluster,
)
from rolecall.cli.output import Terminal
from rolecall.client import Client
from rolecall.client.connection import Connection
from rolecall.spec.role import Role
from rolecall.supervisor import Ended, SupervisedProgram, Supervisor

NOWHERE = Connection("http://127.0.0.1:9", "the-token-of-the-users")


def environments(data: Path, counts: dict[Role, int], **given: str) -> dict[str, dict[str, str]]:
    """The environments of a cluster's programs by their names."""
    return {program.name: dict(program.environment) for program in cluster(NOWHERE, data, counts, given)}


def test_each_role_has_its_nodes_with_a_slot_for_each_that_computes(tmp_path: Path) -> None:
    counts = {Role.MASTER: 1, Role.PARAMETER_SERVER: 1, Role.TRAINER: 2, Role.STAGE: 0, Role.OBSERVER: 1}
    programs = cluster(NOWHERE, tmp_path, counts, {})
    assert [program.name for program in programs] == [
        "master", "master-0", "parameter-server-0", "trainer-0", "trainer-1", "observer-0"
    ]  # fmt: skip
    assert [program.command[-1] for program in programs] == ["master", *["node"] * 5]
    assert [program.log for program in programs] == [tmp_path / f"logs/{program.name}.log" for program in programs]
    nodes = {program.name: program.environment for program in programs[1:]}
    assert {one["ROLE"] for one in nodes.values()} == {"master", "parameter-server", "trainer", "observer"}
    assert all(one["ROLECALL_NODE_NAME"] == name for name, one in nodes.items())
    assert [name for name, one in nodes.items() if one.get("ROLECALL_SLOTS") == "1"] == [
        name for name, one in nodes.items() if Role(one["ROLE"]).computes
    ]
    computing = sum(Role(one["ROLE"]).computes for one in nodes.values())
    assert {one["ROLECALL_CPU_SLOTS"] for one in nodes.values()} == {str(computing)}, "they share the machine's cores"


def test_the_programs_find_each_other_whatever_the_users_environment_says(tmp_path: Path) -> None:
    """It may be that of another master, which is remote, with certificates and secrets in files."""
    names = ("SLOTS", "TOKEN", "TOKEN_FILE", "NODE_TOKEN_FILE", "TLS_CERT", "TLS_KEY", "TLS_CA", "TLS_NAME")
    given = {"ROLE": "another", **{f"ROLECALL_{name}": "another" for name in names}}
    given |= {"ROLECALL_HOST": "0.0.0.0", "ROLECALL_PORT": "1", "MASTER_ADDR": "elsewhere", "PATH": "/bin"}
    found = environments(tmp_path, {Role.PARAMETER_SERVER: 1}, **given)
    for one in found.values():
        assert "another" not in set(one.values())
        assert (one["ROLECALL_HOST"], one["ROLECALL_PORT"], one["MASTER_ADDR"]) == ("127.0.0.1", "9", "127.0.0.1")
        assert (one["PATH"], one["ROLECALL_CPU_SLOTS"]) == ("/bin", "1")
    master, node = found["master"], found["parameter-server-0"]
    assert (master["ROLECALL_TOKEN"], "ROLECALL_TOKEN" in node) == (NOWHERE.token, False)
    assert master["ROLECALL_NODE_TOKEN"] == node["ROLECALL_NODE_TOKEN"]
    assert (master["ROLECALL_DATA"], node["ROLECALL_DATA"]) == (str(tmp_path / "master"), str(tmp_path))


def test_the_secrets_of_each_cluster_are_its_own_but_for_a_token_that_prometheus_has(tmp_path: Path) -> None:
    first, second = [environments(tmp_path, {})["master"] for _ in range(2)]
    for name in ("ROLECALL_NODE_TOKEN", "ROLECALL_METRICS_TOKEN"):
        assert len(first[name]) > 30
        assert first[name] != second[name]
    given = environments(tmp_path, {Role.TRAINER: 1}, ROLECALL_METRICS_TOKEN="known-to-prometheus")
    assert {one["ROLECALL_METRICS_TOKEN"] for one in given.values()} == {"known-to-prometheus"}


def test_a_folder_keeps_its_token_in_a_private_file(tmp_path: Path) -> None:
    data = tmp_path / "new"
    token = _data_folder_token(data)
    assert len(token) > 30
    assert _data_folder_token(data) == token
    assert (data / "token").stat().st_mode & 0o777 == 0o600
    assert _data_folder_token(tmp_path / "other") != token


def test_a_folder_has_one_cluster_whose_url_others_get(tmp_path: Path) -> None:
    data = tmp_path / "new"
    with _lock(data) as lock:
        lock.write(b"http://127.0.0.1:8431")
        lock.flush()
        with pytest.raises(CommandError) as caught:
            _lock(data)
        assert caught.value.code is Exit.FAILED
        assert "--url http://127.0.0.1:8431" in str(caught.value)
    with _lock(data):
        assert (data / "lock").read_bytes() == b"", "the earlier cluster has ended"


def test_a_free_port_is_none_that_the_kernel_gives_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    first, choices = _first_ephemeral_port(), local._PORTS
    for _ in range(5):
        port = _free_port(0)
        assert 1024 <= port < first
        with socket.create_server(("127.0.0.1", port)):
            # Few choices, so that the port would be among them.
            monkeypatch.setattr(local, "_first_ephemeral_port", lambda port=port: port + 2)
            monkeypatch.setattr(local, "_PORTS", 4)
            assert port not in {_free_port(0) for _ in range(20)}
            monkeypatch.setattr(local, "_first_ephemeral_port", lambda: first)
            monkeypatch.setattr(local, "_PORTS", choices)
            with pytest.raises(CommandError, match=f"port {port} of 127.0.0.1 can't be used .Address already in use.;"):
                _free_port(port)
        assert _free_port(port) == port


STAYS = "import signal; signal.pause()"


def program(name: str, source: str, log: Path | None = None) -> SupervisedProgram:
    return SupervisedProgram(name, (sys.executable, "-c", source), os.environ, log)


def test_a_program_that_ends_during_the_start_ends_it_with_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    failing = program("trainer-0", "import sys; [print('line', n) for n in range(30)]; sys.exit(78)", log)
    programs = [program("master", STAYS), failing]
    with Supervisor(programs) as supervisor, pytest.raises(CommandError) as caught:
        _wait_until_ready(supervisor, NOWHERE, programs)
    heading, *lines = str(caught.value).splitlines()
    assert heading.startswith("trainer-0 ended with exit code 78")
    assert heading.endswith(f"; last lines of {log}:")
    assert lines == [f"line {number}" for number in range(10, 30)]


def test_nodes_that_do_not_register_in_time_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_START_S", 0.2)
    programs = [program(name, STAYS) for name in ("master", "trainer-0", "trainer-1")]
    with (
        Supervisor(programs, grace_s=0.0) as supervisor,
        pytest.raises(CommandError, match=r"not registered after 0 s: trainer-0, trainer-1$"),
    ):
        _wait_until_ready(supervisor, NOWHERE, programs)


class Starting:
    """A supervisor whose programs start, one after another."""

    should_exit = False

    def wait(self, timeout_s: float | None = None) -> list[Ended]:
        return []


@pytest.mark.parametrize("is_terminal", [False, True])
def test_the_nodes_that_have_registered_are_counted_until_all_have(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    answers: list[Any] = [None, set(), {"b"}, None, {"a"}]
    said = StringIO()
    monkeypatch.setattr(local, "_live_nodes", lambda _: answers.pop(0))
    monkeypatch.setattr(local, "err", Terminal(file=said, force_terminal=is_terminal, color_system=None, width=80))
    monkeypatch.setattr(local, "_LINE_EVERY_S", 0.0)
    programs = [SupervisedProgram(name, (), {}, Path("log")) for name in ("master", "a", "b")]
    _wait_until_ready(cast(Supervisor, Starting()), Connection("http://127.0.0.1:9", "token"), programs)
    expected = [
        " s: the master is starting",
        " s: 0 of 2 nodes are registered; waiting for a, b",
        " s: 1 of 2 nodes are registered; waiting for a",
        " s: 1 of 2 nodes are registered; waiting for a",
        " s: 2 of 2 nodes are registered",
    ]
    if is_terminal:
        assert all(line in said.getvalue() for line in expected)
        assert said.getvalue().count("\n") == 1, "one line, which is replaced"
    else:
        assert [line.lstrip("0123456789") for line in said.getvalue().splitlines()] == expected


def test_a_master_that_listens_without_an_answer_does_not_hold_up_the_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local, "_ANSWER_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listening = Connection(f"http://127.0.0.1:{listener.getsockname()[1]}", "token")
        began = time.monotonic()
        with Client(listening) as client:
            assert _live_nodes(client) is None
    assert time.monotonic() - began < 10, "less than the client's own patience"


def test_a_terminal_that_cannot_replace_a_line_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as that of an editor. There, a `Live` shows nothing at all."""
    said = StringIO()
    monkeypatch.setattr(local, "err", Terminal(file=said, force_terminal=True, _environ={"TERM": "dumb"}))
    monkeypatch.setattr(local, "_LINE_EVERY_S", 0.0)
    with _progress() as show:
        show("0 of 4")
        show("4 of 4")
    assert said.getvalue() == "0 of 4\n4 of 4\n"


def test_a_log_gets_few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    said = StringIO()
    monkeypatch.setattr(local, "err", Terminal(file=said))
    with _progress() as show:
        for count in range(100):
            show(f"{count} of 100")
    assert said.getvalue() == ""


def test_a_local_cluster_reads_below_the_folder_it_was_started_in(monkeypatch: pytest.MonkeyPatch) -> None:
    here, data = Path("/here"), Path("/here/.rolecall")
    monkeypatch.setenv("ROLECALL_DATA_ROOTS", "/a:/b")
    assert _data_roots(here, data) == "/a:/b:/here"
    monkeypatch.delenv("ROLECALL_DATA_ROOTS")
    assert _data_roots(here, data) == "/data:/opt/rolecall/examples:/here"
    with pytest.raises(CommandError, match="contains a colon"):
        _data_roots(Path("/he:re"), data)


@pytest.mark.parametrize(
    "folder", ["/", "/home", "/home/me", "/etc", "/etc/me/rolecall", "/srv/data", "/srv/data/logs"]
)
def test_a_local_cluster_opens_no_private_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: str
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/etc/me")
    monkeypatch.setenv("ROLECALL_DATA_ROOTS", "/a")
    assert _data_roots(Path(folder), Path("/srv/data")) == "/a"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{folder} is not a data root, because it contains ")
    assert line.endswith("; start in the folder of the data, or set ROLECALL_DATA_ROOTS")
    monkeypatch.setenv("ROLECALL_DATA_ROOTS", folder)
    assert _data_roots(Path(folder), Path("/srv/data")) == folder
    assert not capsys.readouterr().err


@pytest.mark.slow
def test_local_prints_its_connection_as_json(tmp_path: Path) -> None:
    command = [*ROLECALL, "local", "--port", "0", "--trainers", "0", "--parameter-servers", "0", "--json"]
    environment = os.environ | {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    environment.pop("ROLECALL_TOKEN", None)
    with subprocess.Popen([*command, "--data", str(tmp_path)], env=environment, stdout=-1, stderr=-1) as process:
        try:
            assert process.stdout
            said = json.loads(process.stdout.readline())
            stored = json.loads(Path(said["token_file"]).read_text())
            token = (tmp_path / "token").read_text()
            assert stored == {"url": said["url"], "token": token, "data": str(tmp_path)}
            assert (Path(said["logs"]) / "master.log").exists()
        finally:
            process.terminate()
        assert process.stderr
        output = process.stderr.read().decode()
        assert f"token in {tmp_path}/token" in output
        assert output.endswith("stopping the master and the nodes; their data remains\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "said"),
    [("", "it is empty; name a folder"), ("file/below", "can't be the data folder (Not a directory)")],
)
def test_a_data_folder_that_cannot_be_is_an_error(tmp_path: Path, data: str, said: str) -> None:
    (tmp_path / "file").touch()
    command = [*ROLECALL, "local", "--port", "0", "--data", data]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode in {1, 2}
    assert said in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_port_in_use_is_an_error_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [*ROLECALL, "local", "--port", str(port), "--data", str(tmp_path)]
        done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=10, check=False)
    assert done.returncode == 1
    said = f"port {port} of 127.0.0.1 can't be used (Address already in use); choose another --port"
    assert said in " ".join(done.stderr.split())


@pytest.mark.slow
def test_a_token_that_is_too_short_is_wrong_usage_and_starts_nothing(tmp_path: Path) -> None:
    command = [*ROLECALL, "local", "--token", "x" * 15, "--data", str(tmp_path / "new")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, "it needs at least 16 characters" in done.stderr) == (Exit.USAGE, True)
    assert not (tmp_path / "new").exists()
