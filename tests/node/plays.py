"""The functions of workers in the tests of the node, selected by `params.act`, instead of a worker's main function."""

import ctypes
import os
import platform
import re
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from threading import Barrier, Thread
from typing import Any, NoReturn

from rolecall.runtime.attempt_client import AttemptClient
from rolecall.spec.fork import ForkRequest
from rolecall.spec.report import Failure, ProgressLine
from rolecall.spec.state import STOPPED_STATUS
from rolecall.spec.workdir import Workdir
from rolecall.untrusted_files import open_regular
from rolecall.worker.outputs import start_beating


def play(request: ForkRequest) -> int:
    workdir = Workdir(request.workdir)
    print("hello from", request.key)
    start_beating(open_regular(workdir.beat, os.O_WRONLY | os.O_CREAT))
    return globals()[request.launch.params["act"]](request, workdir)


def succeed(request: ForkRequest, workdir: Workdir) -> int:
    report(workdir, kind="joined")
    report(workdir, kind="step", step=7, metrics={"loss": 0.5})
    return 0


def fail(request: ForkRequest, workdir: Workdir) -> int:
    workdir.failure.write_text(Failure(message="ValueError: no", at=datetime.now(UTC)).model_dump_json())
    return 1


def shout(request: ForkRequest, workdir: Workdir) -> int:
    for _ in range(32):
        print("x" * (1 << 18))
    print("the end")
    return fail(request, workdir)


def die(request: ForkRequest, workdir: Workdir) -> int:
    os.kill(os.getpid(), signal.SIGSEGV)
    return 0


def stay(request: ForkRequest, workdir: Workdir) -> int:
    report(workdir, kind="joined")
    report(workdir, kind="step", step=3, metrics={"loss": 0.25})
    while True:
        time.sleep(60)


def grip(request: ForkRequest, workdir: Workdir) -> int:
    """Hold Python's lock indefinitely, in a call of C code."""
    report(workdir, kind="joined")
    re.match("(a+)+b", "a" * 64)
    return 0


def obey(request: ForkRequest, workdir: Workdir) -> int:
    report(workdir, kind="joined")
    while not workdir.stop.exists():
        time.sleep(0.02)
    print("asked:", workdir.stop.read_text())
    return STOPPED_STATUS


def breed(request: ForkRequest, workdir: Workdir) -> int:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("child", child.pid)
    return stay(request, workdir)


def daemonize(request: ForkRequest, workdir: Workdir) -> int:
    """Start a process that leaves this one's group and session, and whose parent has ended."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            stay_forever()
        os._exit(0)
    os.wait()
    return stay(request, workdir)


def renounce(request: ForkRequest, workdir: Workdir) -> int:
    """The same, but this process adopts no orphans: PR_SET_CHILD_SUBREAPER."""
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)
    return daemonize(request, workdir)


def disown(request: ForkRequest, workdir: Workdir) -> int:
    """Start a process that is a child of the fork server like this one: CLONE_PARENT."""
    clone = {"x86_64": 56, "aarch64": 220}[platform.machine()]
    if ctypes.CDLL(None).syscall(clone, 0x8000 | signal.SIGCHLD, 0, 0, 0, 0) == 0:
        os.setsid()
        stay_forever()
    return stay(request, workdir)


def hop(request: ForkRequest, workdir: Workdir) -> int:
    """Start 8 processes, each of which ends and continues in its child for as long as the worker's folder exists."""
    for _ in range(8):
        if os.fork() == 0:
            os.setsid()
            while True:
                with (workdir.scratch / "hops").open("a") as file:
                    file.write("x")
                if os.fork():
                    os._exit(0)
    return stay(request, workdir)


def stay_forever() -> NoReturn:
    print("fled", os.getpid(), flush=True)
    while True:
        time.sleep(60)


def connect(request: ForkRequest, workdir: Workdir) -> int:
    """Make the client of a worker, and print the modules that this has imported."""
    before = set(sys.modules)
    AttemptClient(request.master_url, request.token, "job", 1)
    print("imported", sorted(set(sys.modules) - before))
    return 0


def meet(request: ForkRequest, workdir: Workdir) -> int:
    if request.launch.worker.rank == 0:
        report(workdir, kind="rendezvous", port=4321)
    while request.launch.worker.rank and not workdir.rendezvous.exists():
        time.sleep(0.02)
    if request.launch.worker.rank:
        print("port", workdir.rendezvous.read_text())
    return 0


def reveal(request: ForkRequest, workdir: Workdir) -> int:
    print("token" if os.environ.get("ROLECALL_NODE_TOKEN") else "no token")
    print("interface", os.environ["TP_SOCKET_IFNAME"], "gpus", repr(os.environ["CUDA_VISIBLE_DEVICES"]))
    print("leader", os.getpgrp() == os.getpid() == os.getsid(0), "stdin", repr(sys.stdin.read()))
    return 0


def allocate(request: ForkRequest, workdir: Workdir) -> int:
    """Print the number of heaps of the C library, after threads have allocated memory at the same time."""
    together = Barrier(4)

    def hold() -> None:
        memory = bytearray(1 << 16)
        together.wait()
        memory.clear()

    threads = [Thread(target=hold) for _ in range(together.parties)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    library, listed = ctypes.CDLL(None), workdir.path / "heaps.xml"
    library.fopen.restype = ctypes.c_void_p
    file = ctypes.c_void_p(library.fopen(bytes(listed), b"w"))
    library.malloc_info(0, file)
    library.fclose(file)
    print("heaps", listed.read_text().count("<heap nr="))
    return 0


def run_code(request: ForkRequest, workdir: Workdir) -> int:
    """Run `params.code` like the code of a job without a sandbox."""
    exec(request.launch.params["code"], {"workdir": workdir, "os": os})
    return 0


def report(workdir: Workdir, **fields: Any) -> None:
    with workdir.progress.open("a") as file:
        file.write(ProgressLine(at=datetime.now(UTC), **fields).model_dump_json() + "\n")
