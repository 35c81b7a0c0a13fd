"""The systems: how each is started on this machine, and how a user submits the job to it."""

# ruff: noqa: S603 - the commands are constants

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.peers.marks import Mark, parse
from rolecall.client import Client
from rolecall.client.connection import Connection

ROOT = Path(__file__).parents[2]
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "ignore"}


@dataclass(frozen=True, slots=True)
class Job:
    """A submitted job."""

    marks: Callable[[], list[Mark]]
    cancel: Callable[[], object]


@dataclass(frozen=True, slots=True)
class System:
    """A started system."""

    submit: Callable[[], Job]
    """Runs the command that submits the job, in a new folder."""
    processes: Callable[[], Sequence[psutil.Process]]
    """The processes that run without a job."""


@contextmanager
def rolecall(folder: Path, peers: Path) -> Generator[System]:
    """`rolecall local` with two trainers. `peers` is not used."""
    installed = folder / "installed"
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--target", installed]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, ROOT / "benchmarks/peers/rolecall_job"], check=True
    )
    environment = os.environ | {"XDG_CONFIG_HOME": str(folder), "PYTHONPATH": f"{ROOT}:{installed}"}
    command = [sys.executable, "-m", "rolecall.cli", "local", "--json", "--port", "0", "--data", folder / "data"]
    options = ["--trainers", "2", "--parameter-servers", "0"]
    request = {"workload": "peers", "max_restarts": 3, "params": {"epochs": 1, "checkpoint_every_steps": 20}}
    (folder / "job.json").write_text(json.dumps(request))
    with _running([*command, *options], environment, subprocess.PIPE) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        connection = Connection(**json.loads(Path(ready["token_file"]).read_text()))
        with Client(connection) as client:

            def submit() -> Job:
                command = [sys.executable, "-m", "rolecall.cli", "submit", "--json", str(folder / "job.json")]
                done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
                job = json.loads(done.stdout)["id"]
                marks = lambda: parse(b"".join(client.log(job, {})).decode())  # noqa: E731
                return Job(marks, lambda: client.act(job, "cancel"))

            yield System(submit, lambda: _family(process.pid))


@contextmanager
def ray(folder: Path, peers: Path) -> Generator[System]:
    """A Ray head node with two CPUs."""
    environment = _environment(peers)
    command = [peers / "ray", "start", "--head", "--block", "--num-cpus=2", "--node-ip-address=127.0.0.1"]
    with _running(command, environment, subprocess.DEVNULL) as process:
        _until_answers([str(peers / "ray"), "job", "list"], environment)

        def submit() -> Job:
            place = _folder(folder)
            entry = ["--", peers / "python", "-m", "benchmarks.peers.ray_job", place]
            name = place.name
            command = [peers / "ray", "job", "submit", "--no-wait", "--submission-id", name, *entry]
            subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
            stop = [peers / "ray", "job", "stop", name]
            return Job(_reader(place), lambda: subprocess.run(stop, env=environment, check=True, capture_output=True))

        # `ray start` without --block leaves no process of its own.
        yield System(submit, lambda: _family(process.pid)[1:])


@contextmanager
def torchx(folder: Path, peers: Path) -> Generator[System]:
    """TorchX with the scheduler of this machine, which has no process of its own."""
    environment = _environment(peers)

    def submit() -> Job:
        place = _folder(folder)
        # torchrun restarts the workers; TorchX's local scheduler does not, and its dist.ddp has no option for it.
        options = ["--env", "PET_MAX_RESTARTS=3", "-j", "1x2", "-m", "benchmarks.peers.torchx_job", "--", str(place)]
        command = [str(peers / "torchx"), "run", "-s", "local_cwd", "dist.ddp", *options]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return Job(_reader(place), lambda: _end(process))

    yield System(submit, list)


SYSTEMS = {"rolecall": rolecall, "ray": ray, "torchx": torchx}


def _environment(peers: Path) -> dict[str, str]:
    return os.environ | _QUIET | {"PATH": f"{peers}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


def _folder(parent: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix="job-", dir=parent))


def _reader(place: Path) -> Callable[[], list[Mark]]:
    file = place / "marks"
    return lambda: parse(file.read_text()) if file.exists() else []


def _until_answers(command: Sequence[str], environment: dict[str, str]) -> None:
    for _ in range(10):
        if subprocess.run(command, env=environment, check=False, capture_output=True).returncode == 0:
            return
    raise TimeoutError(f"{' '.join(command)} still fails")


def _family(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def _end(process: "subprocess.Popen[str] | subprocess.Popen[bytes]") -> None:
    family = _family(process.pid) if process.poll() is None else []
    process.terminate()
    process.wait()
    for one in psutil.wait_procs(family, timeout=5)[1]:
        one.kill()


@contextmanager
def _running(command: Sequence[object], environment: dict[str, str], out: int) -> "Generator[subprocess.Popen[str]]":
    process = subprocess.Popen(
        [str(word) for word in command], env=environment, stdout=out, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield process
    finally:
        _end(process)
