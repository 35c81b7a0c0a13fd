"""`rolecall local`: run a complete cluster on this machine, with the same programs as in containers."""

import fcntl
import logging
import os
import random
import secrets
import socket
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from json import dumps
from pathlib import Path
from typing import Annotated, BinaryIO

import typer
from rich.live import Live
from rich.text import Text

from rolecall.cli.exits import CommandError, Exit
from rolecall.cli.output import err
from rolecall.client import Client, Unreachable
from rolecall.client.connection import DATA_FOLDER, Connection, announced, write_secret
from rolecall.process import describe_exit, forbid_inspection, keep_files_private
from rolecall.settings.child_environments import for_nodes, without
from rolecall.settings.private_paths import connection_folder
from rolecall.settings.worker import read_worker
from rolecall.spec.role import Role
from rolecall.spec.visible import listed
from rolecall.supervisor import SupervisedProgram, Supervisor

_HOST = "127.0.0.1"
# Every node imports PyTorch, which takes minutes for many nodes on few busy cores.
_START_S = 180.0
# A master that has just started to listen answers late. Meanwhile, the progress and Ctrl-C would stand still.
_ANSWER_S = 2.0
_GRACE_S = 5.0
_LOG_LINES = 20
_MAX_NAMES = 4
_LINE_EVERY_S = 5.0
_PORTS = 8192

Count = Annotated[int, typer.Option(min=0, max=64, help="Number of nodes of this role, with one slot each.")]
Servers = Annotated[int, typer.Option(min=0, max=64, help="Number of nodes of this role.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port of the master; 0 selects a free port.")]


def _folder(given: str | Path) -> Path:
    if not str(given):
        raise typer.BadParameter("it is empty; name a folder")
    return Path(given)


Data = Annotated[
    Path,
    typer.Option(
        metavar="DIR",
        parser=_folder,
        help="Folder for jobs, checkpoints and logs, which remain after the cluster ends.",
    ),
]
Token = Annotated[
    str | None, typer.Option("--token", envvar="ROLECALL_TOKEN", help="The users' token; by default a generated one.")
]

Json = Annotated[bool, typer.Option("--json", help="Print the cluster's connection as JSON.")]


def local(  # noqa: PLR0917 - the command line is the signature
    trainers: Count = 2,
    parameter_servers: Servers = 1,
    stages: Count = 0,
    observers: Count = 0,
    port: Port = 8080,
    data: Data = Path(DATA_FOLDER),
    token: Token = None,
    json: Json = False,
) -> None:
    """Run a cluster on this machine until Ctrl-C.

    Prints `ready URL` when every node has registered; with --json, one line with `url`, `token_file` and `logs`. The
    other commands find the cluster automatically.
    """
    counts = {
        Role.MASTER: 1,
        Role.PARAMETER_SERVER: parameter_servers,
        Role.TRAINER: trainers,
        Role.STAGE: stages,
        Role.OBSERVER: observers,
    }
    try:
        forbid_inspection()
    except OSError as error:
        raise CommandError(Exit.FAILED, f"{error.strerror}") from None
    keep_files_private()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if token is not None and len(token) < 16:
        raise CommandError(Exit.USAGE, "the token is too short; it needs at least 16 characters")
    lock = _lock(data)
    url = f"http://{_HOST}:{_free_port(port)}"
    connection = Connection(url, token or _data_folder_token(data), data=str(data.resolve()))
    lock.write(connection.url.encode())
    lock.flush()
    roots = _data_roots(Path.cwd(), data.resolve())
    programs = cluster(connection, data.resolve(), counts, os.environ | {"ROLECALL_DATA_ROOTS": roots})
    err.print(f"starting a master and {len(programs) - 1} nodes; each imports PyTorch, which can take a minute")
    with lock, Supervisor(programs, grace_s=_GRACE_S) as supervisor, ExitStack() as stack:
        _wait_until_ready(supervisor, connection, programs)
        if supervisor.should_exit:
            return
        token_file = stack.enter_context(announced(connection))
        where = f"token in {_token_file(data)}" if token is None else "token as given"
        err.print(f"{where}, logs in {data}/logs; Ctrl-C ends the cluster", markup=False)
        ready = {"url": connection.url, "token_file": str(token_file), "logs": str(data.resolve() / "logs")}
        print(dumps(ready) if json else f"ready {connection.url}", flush=True)
        while not supervisor.should_exit:
            supervisor.wait()
        with suppress(OSError):  # The terminal may be gone.
            print("stopping the master and the nodes; their data remains", file=sys.stderr, flush=True)


def cluster(
    connection: Connection, data: Path, counts: Mapping[Role, int], environment: Mapping[str, str]
) -> list[SupervisedProgram]:
    """The programs of a cluster: the control program first, then the nodes of each role."""
    logs = data / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    slots = sum(count for role, count in counts.items() if role.computes)
    metrics = environment.get("ROLECALL_METRICS_TOKEN") or secrets.token_urlsafe(32)
    shared = without(environment, _OVERRIDDEN, [_token_file(data)]) | {
        "ROLECALL_NODE_TOKEN": secrets.token_urlsafe(32),
        "ROLECALL_METRICS_TOKEN": metrics,
        "ROLECALL_HOST": _HOST,
        "ROLECALL_PORT": connection.url.rpartition(":")[2],
        "ROLECALL_METRICS_PORT": "0",
        "ROLECALL_CPU_SLOTS": str(max(1, slots)),
        "MASTER_ADDR": _HOST,
    }
    control = shared | {"ROLECALL_TOKEN": connection.token, "ROLECALL_DATA": str(data / "master")}
    node_environment = for_nodes(shared)
    programs = [SupervisedProgram("master", _command("master"), control, logs / "master.log")]
    for role, count in counts.items():
        of_role = node_environment | {"ROLE": role.value} | ({"ROLECALL_SLOTS": "1"} if role.computes else {})
        for name in (f"{role}-{index}" for index in range(count)):
            own = of_role | {"ROLECALL_NODE_NAME": name, "ROLECALL_DATA": str(data)}
            programs.append(SupervisedProgram(name, _command("node"), own, logs / f"{name}.log"))
    return programs


def _data_roots(started_in: Path, data: Path) -> str:
    """The configured or default roots, and the folder in which the command was started, unless it is private."""
    roots = read_worker().data_roots
    if started_in in roots:
        return ":".join(map(str, roots))
    if private := _private_content(started_in, data):
        err.print(
            f"{started_in} is not a data root, because it contains {private}; start in the folder of the data, or set "
            "ROLECALL_DATA_ROOTS",
            markup=False,
        )
        return ":".join(map(str, roots))
    if ":" in str(started_in):
        raise CommandError(
            Exit.USAGE,
            f"{started_in} contains a colon, the separator of ROLECALL_DATA_ROOTS; start in another folder",
        )
    return ":".join(map(str, [*roots, started_in]))


def _private_content(folder: Path, data: Path) -> str | None:
    """The reason why `folder` must not be a data root, or None. A data folder inside it is closed to jobs anyway."""
    for content, path in (("your home folder", Path.home()), ("the connection files", connection_folder())):
        if path.resolve().is_relative_to(folder):
            return content
    return "the cluster's data" if folder.is_relative_to(data) else None


# Set by this command; a secret's `_FILE` would take precedence over the value.
_OVERRIDDEN = {
    "ROLE",
    "ROLECALL_TOKEN",
    "ROLECALL_TOKEN_FILE",
    "ROLECALL_NODE_TOKEN_FILE",
    "ROLECALL_SLOTS",
    # The programs communicate on the loopback interface.
    "ROLECALL_TLS_CERT",
    "ROLECALL_TLS_KEY",
    "ROLECALL_TLS_CA",
    "ROLECALL_TLS_NAME",
}


def _command(program: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "rolecall", program)


def _wait_until_ready(supervisor: Supervisor, connection: Connection, programs: list[SupervisedProgram]) -> None:
    """Wait until every node has registered or a signal arrives. Raises if a program ends before that."""
    began = time.monotonic()
    nodes, seen = [program.name for program in programs[1:]], set[str]()
    with Client(connection) as client, _progress() as show:
        while (missing := [name for name in nodes if name not in seen]) and not supervisor.should_exit:
            for ended in supervisor.wait(0.1):
                log = ended.program.log
                lines = log.read_text(errors="replace").splitlines()[-_LOG_LINES:] if log else []
                heading = f"{ended.program.name} ended with {describe_exit(ended.code)}; last lines of {log}:"
                raise CommandError(Exit.FAILED, "\n".join([heading, *lines]))
            waited_s = time.monotonic() - began
            if waited_s > _START_S:
                raise CommandError(Exit.FAILED, f"not registered after {_START_S:.0f} s: {', '.join(missing)}")
            alive = _live_nodes(client)
            seen |= alive or set()
            show(f"{waited_s:.0f} s: {_registered(nodes, seen, is_up=alive is not None or bool(seen))}")


def _registered(nodes: Sequence[str], seen: Set[str], *, is_up: bool) -> str:
    """The progress of the start, as a text; `is_up` says whether the master has answered."""
    if not is_up:
        return "the master is starting"
    missing = [name for name in nodes if name not in seen]
    waiting = f"; waiting for {listed(missing, _MAX_NAMES)}" if missing else ""
    return f"{len(nodes) - len(missing)} of {len(nodes)} nodes are registered{waiting}"


@contextmanager
def _progress() -> Generator[Callable[[str], None]]:
    """Shows a text, which a terminal replaces by the next one. Elsewhere, a line follows from time to time."""
    if err.is_terminal and not err.is_dumb_terminal:
        # Without a thread that refreshes: the kernel could deliver the supervisor's signals to it.
        with Live(console=err, auto_refresh=False, transient=True) as live:
            yield lambda text: live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
        return
    last = time.monotonic()

    def show(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= _LINE_EVERY_S:
            err.print(text, markup=False)
            last = time.monotonic()

    yield show


def _live_nodes(client: Client) -> set[str] | None:
    """The names of the live nodes; None if the master doesn't listen or answer yet."""
    try:
        return {node.spec.name for node in client.nodes(timeout_s=_ANSWER_S) if node.alive}
    except Unreachable:
        return None


def _free_port(port: int) -> int:
    """The port if it is free, or a free port for 0.

    A free port is outside the kernel's ephemeral range, so that no other program gets it before the master listens.
    """
    if port == 0:
        choices = range(max(1024, _first_ephemeral_port() - _PORTS), _first_ephemeral_port())
        return next(choice for choice in random.sample(choices, len(choices)) if _is_free(choice))
    try:
        with socket.create_server((_HOST, port)):
            return port
    except OSError as error:
        raise CommandError(
            Exit.FAILED,
            f"port {port} of {_HOST} can't be used ({os.strerror(error.errno or 0)}); "
            "choose another --port, or 0 for a free one",
        ) from None


def _is_free(port: int) -> bool:
    try:
        with socket.create_server((_HOST, port)):
            return True
    except OSError:
        return False


def _first_ephemeral_port() -> int:
    return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])


def _lock(data: Path) -> BinaryIO:
    """Lock the data folder; raises if another `rolecall local` has locked it. The lock ends with the file.

    The file is for the URL of the cluster.
    """
    try:
        data.mkdir(parents=True, exist_ok=True)
        file = (data / "lock").open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise
    except BlockingIOError:
        url = (data / "lock").read_text(errors="replace")
        raise CommandError(
            Exit.FAILED,
            f"another `rolecall local` uses {data}; use its cluster (--url {url}), or choose another --data and --port",
        ) from None
    except OSError as error:
        raise CommandError(
            Exit.FAILED, f"{data} can't be the data folder ({error.strerror}); choose another --data"
        ) from None
    file.truncate(0)
    return file


def _data_folder_token(data: Path) -> str:
    """The token of this data folder, created at its first start."""
    path = _token_file(data)
    if not path.exists():
        data.mkdir(parents=True, exist_ok=True)
        write_secret(path, secrets.token_urlsafe(32))
    return path.read_text().strip()


def _token_file(data: Path) -> Path:
    return data / "token"
