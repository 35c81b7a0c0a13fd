"""The abilities and limits of a confined worker: real processes that restrict themselves as a worker does."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests.node.harness import ROOT, launch
from tests.prerequisites import require_landlock
from tests.security.forbidding import FORBIDDING

from rolecall import landlock
from rolecall.kit.cache import make_owner_folder
from rolecall.node.folder import short_name
from rolecall.settings.child_environments import for_workers
from rolecall.spec.fork import ForkRequest
from rolecall.spec.workdir import Workdir

FORK_SERVER = """
import json, os, signal, subprocess, sys, multiprocessing
from rolecall.settings.worker import read_worker
from rolecall.spec.fork import ForkRequest
from rolecall.worker.sandbox import confine

def outcome(act):
    try:
        act()
    except OSError as error:
        return type(error).__name__
    return "done"

def read(path):
    return outcome(lambda: open(path, "rb").read(1))

def write(path):
    return outcome(lambda: open(path, "w").write("x"))

for line in sys.stdin:
    if child := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    sent = json.loads(line)
    for number, path in enumerate([os.devnull, sent["folder"] + "/stdout", sent["folder"] + "/stderr"]):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), number)
    os.chdir(sent["cwd"])
    os.environ.update(sent["environment"])
    request = ForkRequest.model_validate_json(sent["request"])
    exec(sent["code"])
    break
"""
"""A program that forks a worker for each line that it gets, after the imports that would take most of a test."""

Run = Callable[..., Any]


@contextmanager
def forking(python_path: str) -> Generator[Run]:
    """Gives what code prints as JSON in a process that is a worker's until it confines itself."""
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": python_path}
    with (
        TemporaryDirectory() as folder,
        subprocess.Popen(
            [sys.executable, "-c", FORK_SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        ) as process,
    ):

        def run(request: ForkRequest, code: str, cwd: str = "/", **environment: str) -> Any:
            sent = {"folder": folder, "cwd": cwd, "environment": environment, "code": code}
            assert process.stdin
            assert process.stdout
            print(json.dumps(sent | {"request": request.model_dump_json()}), file=process.stdin, flush=True)
            assert process.stdout.readline() == "0\n", Path(folder, "stderr").read_text()
            return json.loads(Path(folder, "stdout").read_text())

        yield run


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    require_landlock()
    with forking(str(ROOT / "services")) as run:
        yield run


@pytest.fixture
def request_of(tmp_path: Path) -> ForkRequest:
    """A worker's request, with all around it that a node and a master have in their data folder."""
    data = tmp_path / "data"
    others = ("nodes/n/work/other/1/0/log.txt", "blobs/other/1/model", "caches/other/rows", "cache/text/rows")
    for secret in ("rolecall.db", "token", *others):
        (data / secret).parent.mkdir(parents=True, exist_ok=True)
        (data / secret).write_text("secret")
    workdir = Workdir.of(data / "nodes/n", "mine", 1, 0).path
    workdir.mkdir(parents=True)
    cache = make_owner_folder(data / "caches", "owner", "mine")
    (tmp_path / "rows.csv").write_text("rows")
    (tmp_path / "outside").mkdir()
    return ForkRequest(
        key="mine/1/0",
        launch=launch("mine", "none"),
        workdir=workdir,
        data=data,
        cache=cache,
        master_url="",
        token="",
    )


@pytest.mark.slow
def test_a_worker_reads_data_and_writes_its_own_folder_alone(run: Run, request_of: ForkRequest, tmp_path: Path) -> None:
    """The data root lies around the data folder, as in `rolecall local` where it was started."""
    data, own = tmp_path / "data", request_of.workdir
    code = f"""
confine(request, read_worker())
print(json.dumps({{
    "allowed": [read("{tmp_path}/rows.csv"), read("/etc/hosts"), read("/proc/cpuinfo"), read("/proc/self/environ"),
        read(sys.executable), write("{own}/scratch/x"), write("{request_of.cache}/x"), write("/dev/null"),
        write(os.environ["TMPDIR"] + "/x"), write("/dev/shm/rolecall-test-{own.parts[2]}"), read("/dev/urandom"),
        outcome(lambda: os.unlink("/dev/shm/rolecall-test-{own.parts[2]}")),
        outcome(lambda: subprocess.run(["true"], check=True)), outcome(lambda: os.listdir("{tmp_path}"))],
    "refused": [read("{data}/rolecall.db"), read("{data}/token"), read("{data}/nodes/n/work/other/1/0/log.txt"),
        read("{data}/blobs/other/1/model"), read("{data}/caches/other/rows"), read("{data}/cache/text/rows"),
        write("{data}/caches/other/x"), write("{data}/caches/x"), read("/etc/shadow"), read("/root/.profile"),
        outcome(lambda: os.symlink("/", "{data}/caches/third")), write("{tmp_path}/rows.csv"),
        write("{tmp_path}/outside/x"), write("/usr/x"), write("/tmp/x-{own.parts[2]}"),
        read(f"/proc/{{os.getppid()}}/environ"), read(f"/proc/{{os.getppid()}}/maps"),
        outcome(lambda: os.listdir("/tmp")), outcome(lambda: os.kill(os.getppid(), 0))],
}}))
"""
    said = run(request_of, code, ROLECALL_DATA_ROOTS=str(tmp_path))
    assert set(said["allowed"]) == {"done"}, said
    if landlock.version() < 6:  # No word about signals yet.
        said["refused"].pop()
    assert set(said["refused"]) == {"PermissionError"}, said


@pytest.mark.slow
def test_the_data_folder_is_hidden_wherever_it_lies(request_of: ForkRequest, tmp_path: Path) -> None:
    """Below a folder where Python finds code, too."""
    code = f"""
confine(request, read_worker())
print(json.dumps([read("{tmp_path}/rows.csv"), read("{tmp_path}/data/token")]))
"""
    require_landlock()
    with forking(f"{ROOT / 'services'}:{tmp_path}") as run:
        assert run(request_of, code) == ["done", "PermissionError"]


@pytest.mark.parametrize(
    "root", ["", "home", "home/.config", "home/.config/rolecall", "home/.config/rolecall/local-1.json"]
)
def test_no_root_opens_the_connection_file_or_a_secret(
    run: Run, request_of: ForkRequest, tmp_path: Path, root: str
) -> None:
    """They lie below a root, as where `rolecall local` was started in the user's home folder."""
    config, token, key = tmp_path / "home/.config", tmp_path / "home/keys/admin", tmp_path / "home/keys/key.pem"
    for path in (config / "rolecall/local-1.json", config / "other", token, key, tmp_path / "home/rows"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("secret")
    named = {"ROLECALL_TOKEN_FILE": str(token), "ROLECALL_TLS_KEY": str(key)}
    inherited = for_workers({"XDG_CONFIG_HOME": str(config), "ROLECALL_DATA_ROOTS": str(tmp_path / root), **named})
    code = f"""
confine(request, read_worker())
paths = "{config}/rolecall/local-1.json", "{token}", "{key}", "{config}/other", "{tmp_path}/home/rows"
print(json.dumps([read(path) for path in paths]))
"""
    said = run(request_of, code, **inherited)
    open_below = {"": ["done"] * 2, "home": ["done"] * 2, "home/.config": ["done", "PermissionError"]}
    assert said == ["PermissionError"] * 3 + open_below.get(root, ["PermissionError"] * 2)


def test_neither_the_node_s_working_folder_nor_a_login_is_open(
    run: Run, request_of: ForkRequest, tmp_path: Path
) -> None:
    for name in ("outside/.env", "hub/token", "hub/models"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("secret")
    code = f"""
confine(request, read_worker())
print(json.dumps([read(f"{tmp_path}/{{name}}") for name in ("outside/.env", "hub/token", "hub/models")]))
"""
    said = run(request_of, code, str(tmp_path / "outside"), HF_HOME=str(tmp_path / "hub"))
    assert said == ["PermissionError", "PermissionError", "done"]


def test_what_a_worker_starts_is_confined_too(run: Run, request_of: ForkRequest, tmp_path: Path) -> None:
    """Loader processes have their sockets below $TMPDIR."""
    code = f"""
confine(request, read_worker())
with multiprocessing.get_context("fork").Pool(1) as pool:
    inside = pool.apply(read, ("{tmp_path}/data/token",))
with multiprocessing.get_context("spawn").Manager() as manager:
    shared = manager.list([1])[0]
shell = subprocess.run(["cat", "{tmp_path}/data/token"], stderr=subprocess.DEVNULL).returncode
print(json.dumps([inside, shared, shell]))
"""
    with short_name(tmp_path / "data/nodes/n/work") as work:
        temporary = {"TMPDIR": str(work / "mine/1/0/scratch")}
        assert run(request_of.model_copy(update={"env": temporary}), code) == ["PermissionError", 1, 1]


def test_a_job_s_own_blobs_alone_are_open_in_a_shared_folder(run: Run, request_of: ForkRequest, tmp_path: Path) -> None:
    launched = request_of.launch.model_copy(update={"blob_url": (tmp_path / "blobs").as_uri()})
    code = f"""
confine(request, read_worker())
print(json.dumps([write("{tmp_path}/blobs/mine/x"), write("{tmp_path}/blobs/x"), read("{tmp_path}/blobs/other")]))
"""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs/other").write_text("theirs")
    said = run(request_of.model_copy(update={"launch": launched}), code)
    assert said == ["done", "PermissionError", "PermissionError"]


def test_a_refusal_names_the_sandbox_and_what_to_set(run: Run, request_of: ForkRequest, tmp_path: Path) -> None:
    code = f"""
sandbox = confine(request, read_worker())
hints = []
for path, mode in (("{tmp_path}/rows.csv", "r"), ("/opt/made-by-a-job", "w"), ("{request_of.workdir}/none", "r")):
    try:
        open(path, mode)
    except OSError as error:
        hints.append(sandbox.hint(error))
print(json.dumps(hints))
"""
    outside, written, inside = run(request_of, code)
    assert f"the sandbox keeps workers from {tmp_path}/rows.csv" in outside
    assert all(name in outside for name in ("ROLECALL_DATA_ROOTS", "ROLECALL_PLUGINS", "ROLECALL_SANDBOX=off"))
    assert os.getuid() != 0 or "the sandbox keeps workers from /opt/made-by-a-job" in written
    assert inside == ""


@pytest.mark.parametrize(("mode", "expected"), [("off", "done"), ("auto", "done"), ("required", "SandboxUnavailable")])
def test_a_kernel_without_landlock(run: Run, request_of: ForkRequest, tmp_path: Path, mode: str, expected: str) -> None:
    code = f"""
from rolecall.spec.errors import RolecallError
{FORBIDDING}
forbid(444, 1)
said = "done"
try:
    assert not confine(request, read_worker()).rules
except RolecallError as error:
    said = type(error).__name__
print(json.dumps([said, read("{tmp_path}/rows.csv")]))
"""
    assert run(request_of, code, ROLECALL_SANDBOX=mode) == [expected, "done"]


@pytest.mark.slow
def test_what_the_node_reads_can_not_be_replaced(run: Run, request_of: ForkRequest) -> None:
    """A worker writes to its node through what it opened before, and makes nothing there that leads elsewhere."""
    own = request_of.workdir
    for name in ("log.txt", "progress.jsonl", "stop"):
        (own / name).write_text("")
    code = f"""
from pathlib import Path
from rolecall.spec.report import Failure
from rolecall.spec.workdir import Workdir
from rolecall.worker.outputs import Outputs
own = Path("{own}")
outputs = Outputs.open(Workdir(own))
confine(request, read_worker())
scratch = own / "scratch"
(scratch / "x").write_text("")
outputs.report.event("heard")
outputs.fail(Failure(message="so it ended", at="2026-01-01T00:00:00Z"))
os.utime(outputs.beat)
print(json.dumps([outcome(act) for act in (
    lambda: os.unlink(own / "log.txt"), lambda: os.symlink("/etc/hosts", own / "stop.partial"),
    lambda: os.mkfifo(own / "pipe"), lambda: os.mkdir(own / "folder"), lambda: os.rename(own / "stop", scratch / "y"),
    lambda: os.rename(scratch / "x", own / "progress.jsonl"), lambda: os.rename(scratch, own / "moved"),
    lambda: os.link(own / "stop", scratch / "z"), lambda: open(own / "progress.jsonl", "a"),
    lambda: open(f"/proc/self/fd/{{outputs.beat}}", "w"),
)]))
"""
    assert set(run(request_of, code)) <= {"PermissionError", "OSError"}  # EXDEV for what would cross folders.
    assert "heard" in (own / "progress.jsonl").read_text()
    assert "so it ended" in (own / "failure.json").read_text()


def test_links_and_pipes_are_made_among_temporary_files_alone(
    run: Run, request_of: ForkRequest, tmp_path: Path
) -> None:
    """Master and node open what lies in a blob store and a cache, so nothing there may lead elsewhere."""
    launched = request_of.launch.model_copy(update={"blob_url": (tmp_path / "blobs").as_uri()})
    (tmp_path / "part").write_text("weights")
    code = f"""
import socket
from pathlib import Path
from rolecall.runtime.blobs import SharedBlobs
confine(request, read_worker())
scratch = Path("{request_of.workdir}/scratch")
def plant(folder):
    (scratch / folder.name).mkdir(exist_ok=True)
    (scratch / folder.name / "link").symlink_to("/etc/hosts")
    (scratch / "file").write_text("")
    os.mkdir(folder / "empty")
    return [outcome(act) for act in (
        lambda: os.symlink("/etc/hosts", folder / "l"), lambda: os.mkfifo(folder / "p"),
        lambda: socket.socket(socket.AF_UNIX).bind(str(folder / "s")), lambda: os.mknod(folder / "n", 0o20600, 0x103),
        lambda: os.rename(scratch / folder.name, folder / "moved"), lambda: os.link(scratch / "file", folder / "h"),
        lambda: os.rename(scratch / folder.name / "link", folder / "empty" / "l"),
    )]
blobs = SharedBlobs("{launched.blob_url}", "mine", 1)
blobs.put("step/part", Path("{tmp_path}/part"), "")
blobs.get("1/step/part", scratch / "fetched")
print(json.dumps([plant(Path(path)) for path in ("{tmp_path}/blobs/mine", "{request_of.cache}")]
    + [[outcome(lambda: os.mkfifo(scratch / "p"))]]))
"""
    (tmp_path / "blobs").mkdir()
    said = run(request_of.model_copy(update={"launch": launched}), code, ROLECALL_DATA_ROOTS=str(tmp_path / "part"))
    *outside, scratch = said
    assert scratch == ["done"]
    assert {one for folder in outside for one in folder} <= {"PermissionError", "OSError"}, said


def test_a_worker_creates_nothing_in_the_kernel_that_outlives_it(run: Run, request_of: ForkRequest) -> None:
    """Nor do the programs that it starts. Sockets, shared memory and queues of processes work as before."""
    code = """
import ctypes, platform, psutil, socket
from multiprocessing import shared_memory
libc = ctypes.CDLL(None, use_errno=True)
keys = {"x86_64": (248, 249, 250), "aarch64": (217, 218, 219)}[platform.machine()]
def call(function, *arguments):
    if function(*arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")
def named():
    memory = shared_memory.SharedMemory(create=True, size=4096)
    memory.close()
    memory.unlink()
def acts():
    return [outcome(act) for act in (
        lambda: call(libc.shmget, 0, 4096, 0o1600), lambda: call(libc.shmat, -1, 0, 0),
        lambda: call(libc.shmctl, -1, 0, 0), lambda: call(libc.semget, 0, 1, 0o1600),
        lambda: call(libc.semop, -1, 0, 0), lambda: call(libc.semctl, -1, 0, 0), lambda: call(libc.msgget, 0, 0o1600),
        lambda: call(libc.msgsnd, -1, b"", 0, 0), lambda: call(libc.msgrcv, -1, 0, 0, 0, 0),
        lambda: call(libc.msgctl, -1, 0, 0), lambda: call(libc.mq_open, b"/rolecall-test", 0o100, 0o600, 0),
        lambda: call(libc.mq_unlink, b"/rolecall-test"),
        lambda: call(libc.syscall, keys[0], b"user", b"rolecall-test", b"x", 1, -2),
        lambda: call(libc.syscall, keys[1], b"user", b"rolecall-test", 0, -2),
        lambda: call(libc.syscall, keys[2], 0, -3, 0), lambda: socket.socket(socket.AF_VSOCK),
    )]
def needed():
    return [outcome(act) for act in (
        lambda: socket.socket(), lambda: socket.socket(socket.AF_UNIX), lambda: socket.socket(socket.AF_NETLINK,
        socket.SOCK_RAW, 0), psutil.net_if_addrs, named, multiprocessing.Queue, multiprocessing.Semaphore,
    )]
confine(request, read_worker())
with multiprocessing.get_context("fork").Pool(1) as pool:
    print(json.dumps([acts(), pool.apply(acts), needed(), pool.apply(needed)]))
"""
    with short_name(request_of.workdir.parents[2]) as work:
        temporary = {"TMPDIR": str(work / "mine/1/0/scratch")}
        *refused, own, below = run(request_of.model_copy(update={"env": temporary}), code)
    assert refused == [["PermissionError"] * 16] * 2
    assert {*own, *below} == {"done"}


@pytest.mark.slow
def test_a_worker_changes_neither_others_limits_nor_owners(run: Run, request_of: ForkRequest) -> None:
    """Nor do the programs that it starts. What training needs still works: limits and threads of its own."""
    own = request_of.workdir / "scratch/file"
    child = f"""
import os, resource
cpu = resource.RLIMIT_CPU
def outcome(act):
    try:
        act()
    except OSError as error:
        return type(error).__name__
    return "done"
def acts():
    return [outcome(act) for act in (
        lambda: resource.prlimit({os.getpid()}, cpu, (1, 1)), lambda: os.setpriority(os.PRIO_USER, 0, 19),
        lambda: os.setpriority(os.PRIO_PGRP, 0, 19), lambda: os.chown("{own}", os.getuid(), os.getgid()),
        lambda: os.lchown("{own}", os.getuid(), os.getgid()), lambda: os.setxattr("{own}", "user.x", b""),
    )]
"""
    code = f"""
import threading
import torch
confine(request, read_worker())
open("{own}", "w").close()
child = {child!r}
exec(child)
def pinned():
    os.sched_setaffinity(threading.get_native_id(), os.sched_getaffinity(0))
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 0)
with multiprocessing.get_context("fork").Pool(1) as pool:
    allowed = [pool.apply(outcome, (pinned,))]
limits = resource.getrlimit(cpu)
torch.set_num_threads(2)
threads = threading.Thread(target=pinned)
threads.start()
threads.join()
allowed += [outcome(pinned), outcome(lambda: resource.setrlimit(cpu, limits)),
    outcome(lambda: resource.prlimit(os.getpid(), cpu, limits)), outcome(lambda: resource.prlimit({os.getpid()}, cpu)),
    outcome(lambda: torch.ones(600, 600) @ torch.ones(600, 600)), outcome(lambda: os.chmod("{own}", 0o600))]
shell = subprocess.run([sys.executable, "-c", child + "print(acts())"], capture_output=True, text=True)
print(json.dumps([acts(), shell.stdout, allowed]))
"""
    refused, below, allowed = run(request_of, code)
    assert set(allowed) == {"done"}
    assert refused == ["PermissionError"] * 6
    assert below == f"{refused}\n"
