"""Imports torch once and forks workers on demand: `python -m rolecall.worker.fork_server FD`.

`FD` is one end of a socket pair for requests and replies (`spec.fork`) as JSON lines. The server has one thread,
because a fork copies only the calling thread, and locks of other threads would stay locked. It never uses CUDA, which
does not survive a fork.

No process outlives its worker, even if it has left the worker's process group and session. A worker adopts those of its
descendants whose parents have ended, so they stay its descendants, and the server adopts what a worker leaves. Hence
each child of the server that is no worker is left over from a worker that has ended, or has itself avoided its worker,
and the server kills it. When its node ends, the server kills everything and exits.
"""

import argparse
import contextlib
import faulthandler
import gc
import importlib
import json
import logging
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, cast

from pydantic import ValidationError

from rolecall.logs import about, log_to_stderr
from rolecall.orphans import children, end_children
from rolecall.process import adopt_orphans, be_killed_first, die_with_parent
from rolecall.settings.environment import read_log_format
from rolecall.spec.fork import Exited, Forked, ForkReply, ForkRequest, NotForked, Ready
from rolecall.spec.inspection import STACKS_SIGNAL
from rolecall.spec.redaction import redact_text
from rolecall.spec.role import Role
from rolecall.spec.workdir import Workdir
from rolecall.untrusted_files import open_regular
from rolecall.workloads import catalogue

Play = Callable[[ForkRequest], int]

# Modules of workers that take long to import. `torch._dynamo` is loaded by the first optimizer object.
# The first client of httpx loads `certifi` and `httpcore`. `rolecall.kit.tables.source` reads files with pyarrow.
PRELOADED = (
    "certifi",
    "httpcore",
    "numpy",
    "rolecall.kit.tables.source",
    "safetensors.torch",
    "torch",
    "torch._dynamo",
    "torch.distributed.pipelining",
    "torch.distributed.rpc",
    "torchmetrics.classification",
)
DEFAULT_PLAY = "rolecall.worker.main:play"
_BUILT_IN = "rolecall.workloads"

_LOG = logging.getLogger(__name__)
_READ_BYTES = 1 << 16
_LEFTOVERS_S = 1.0
"""The longest delay of the report of a worker's end by its descendants. They end within milliseconds, unless the driver
needs seconds to free the memory of a GPU."""


class ForkServer:
    """Waits for requests, for the ends of its children, and for the end of its node, in one thread."""

    def __init__(self, channel: socket.socket, play: Play) -> None:
        self._channel = channel
        self._play = play
        self._workers: dict[int, str] = {}
        self._preloaded: set[int] = set()
        """The processes that the imported modules have started. They are not reaped, so that their ids stay theirs."""
        self._received = b""
        self._should_exit = False
        self._selector = selectors.DefaultSelector()
        self._wakeup, self._wakeup_write = socket.socketpair()

    def serve(self) -> None:
        """Answer requests until the node closes its end or a SIGTERM arrives, then kill every worker."""
        self._preloaded = children()
        self._wakeup.setblocking(False)
        self._wakeup_write.setblocking(False)
        signal.set_wakeup_fd(self._wakeup_write.fileno())
        signal.signal(signal.SIGCHLD, _ignore)
        signal.signal(signal.SIGTERM, _ignore)
        signal.signal(STACKS_SIGNAL, signal.SIG_IGN)  # A new worker gets it only when it can handle it.
        self._selector.register(self._channel, selectors.EVENT_READ, self._on_request)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._on_signal)
        try:
            self._reply(Ready())
            while not self._should_exit:
                for key, _ in self._selector.select():
                    key.data()
        except (BrokenPipeError, ConnectionResetError):
            _LOG.info("the node has exited", extra=about("node_exited"))
        finally:
            for pid in self._workers:
                _kill_group(pid)
            self._workers.clear()
            self._end_leftovers()

    def _on_request(self) -> None:
        chunk = self._channel.recv(_READ_BYTES)
        self._should_exit = self._should_exit or not chunk
        *lines, self._received = (self._received + chunk).split(b"\n")
        for line in lines:
            self._answer(line)

    def _on_signal(self) -> None:
        self._should_exit = self._should_exit or signal.SIGTERM in self._wakeup.recv(_READ_BYTES)
        ended = [pid for pid in self._workers if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)]
        for pid in ended:
            # The zombie still holds its process group's number, so that neither this nor the node kills another one.
            _kill_group(pid)
        # Before the replies, because then the memory and the GPU are free for the next worker.
        self._end_leftovers()
        for pid in ended:
            _, status = os.waitpid(pid, 0)
            self._reply(Exited(key=self._workers.pop(pid), pid=pid, status=os.waitstatus_to_exitcode(status)))

    def _end_leftovers(self) -> None:
        """Kill the children that are no workers. Those that end later send a signal, and are reaped then."""

        def find() -> set[int]:
            return children() - self._workers.keys() - self._preloaded

        if remaining := end_children(find, _LEFTOVERS_S):
            text = "processes that workers left have not ended within %g s of a SIGKILL: %s"
            named = ", ".join(map(str, sorted(remaining)))
            _LOG.warning(text, _LEFTOVERS_S, named, extra=about("leftover_processes"))

    def _answer(self, line: bytes) -> None:
        try:
            request = ForkRequest.model_validate_json(line)
            pid = self._fork(request)
        except (OSError, ValidationError) as error:
            self._reply(NotForked(key=_key(line), message=f"{type(error).__name__}: {error}"))
            return
        self._workers[pid] = request.key
        self._reply(Forked(key=request.key, pid=pid))

    def _fork(self, request: ForkRequest) -> int:
        """Fork one worker. The log is opened in the server, so that the node gets an error of it."""
        server = os.getpid()
        log = open_regular(Workdir(request.workdir).log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            if (pid := os.fork()) == 0:
                self._become_worker(request, server, log)
            return pid
        finally:
            os.close(log)

    def _become_worker(self, request: ForkRequest, server: int, log: int) -> NoReturn:
        """Run the worker in the forked child. It must never return to the server's loop."""
        code = 1
        try:
            os.setsid()
            _end_with(server, signal.SIGKILL)
            adopt_orphans()
            be_killed_first()  # Not the node or the master, whose jobs would all be lost.
            self._leave_server()
            _redirect(log)
            faulthandler.register(STACKS_SIGNAL, sys.stderr)
            os.environ.update(request.env)
            code = self._play(request)
        except BaseException:  # noqa: BLE001 - nothing above this frame may run in the child
            sys.stderr.write(redact_text(traceback.format_exc()))
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _leave_server(self) -> None:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        self._selector.close()
        for end in (self._channel, self._wakeup, self._wakeup_write):
            end.close()

    def _reply(self, reply: ForkReply) -> None:
        self._channel.sendall(reply.model_dump_json().encode() + b"\n")


def _end_with(parent: int, with_signal: signal.Signals) -> None:
    """Make the kernel send `with_signal` when the parent ends; exit if it already has."""
    die_with_parent(with_signal)
    if os.getppid() != parent:
        os._exit(1)


def threads() -> list[str]:
    """The names of this process's threads in the kernel."""
    return sorted((task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir())


def main(arguments: list[str]) -> int:
    """Import everything, then serve. `--play` replaces the worker's main function, `--preload` the imported modules."""
    parser = argparse.ArgumentParser(prog="python -m rolecall.worker.fork_server", description=__doc__)
    parser.add_argument("fd", type=int, help="the socket to the node")
    parser.add_argument("--play", default=DEFAULT_PLAY, metavar="MODULE:FUNCTION", help="what a worker runs")
    parser.add_argument("--preload", nargs="*", default=PRELOADED, metavar="MODULE", help="what is imported once")
    parser.add_argument("--role", type=Role, choices=list(Role), help="whose built-in modules are imported, too")
    options = parser.parse_args(arguments)
    log_to_stderr(form=read_log_format())
    # SIGTERM instead of SIGKILL, because the server must kill its workers' child processes.
    try:
        _end_with(os.getppid(), signal.SIGTERM)
        adopt_orphans()
    except OSError as error:
        _LOG.error("%s", error.strerror, extra=about("fork_server_unprotected"))
        return os.EX_CONFIG
    with socket.socket(fileno=options.fd) as channel:
        channel.set_inheritable(False)
        ForkServer(channel, _preload(options.preload, options.role, options.play)).serve()
    return 0


def built_in_modules(role: Role) -> list[str]:
    """The modules in which the built-in workloads implement a role.

    Workers import them in 0.1 to 0.2 s of CPU time, which delays the first step of each job. Only workers, which are
    confined, import the workloads of other packages.
    """
    own = [entry.load() for entry in catalogue.installed().values() if entry.module.startswith(f"{_BUILT_IN}.")]
    return [workload.module_of(role) for workload in own if role in workload.roles]


def import_built_in(role: Role) -> None:
    """Import the modules of the built-in workloads for a role, and log those that can't be imported."""
    for name in built_in_modules(role):
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - a broken package must only stop the jobs that need it
            _LOG.warning("%s can't be imported: %s", name, error, extra=about("module_broken"))


def _preload(modules: Sequence[str], role: Role | None, play: str) -> Play:
    # Imports create hundreds of thousands of objects that live on. To collect among them takes a quarter of the time.
    gc.disable()
    for name in modules:
        # A worker that needs a package which is not installed reports that itself.
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    if role:
        import_built_in(role)
    module, _, function = play.partition(":")
    found: Play = getattr(importlib.import_module(module), function)
    if len(names := threads()) > 1:
        text = "the fork server must have one thread and has %d (%s): forks may hang"
        _LOG.error(text, len(names), ", ".join(names), extra=about("fork_server_has_threads"))
    # Exclude all objects from collections, which would copy their pages in the children. The imports leave garbage of
    # about 1 %, and to find it takes half a second of CPU time, which delays the node.
    gc.freeze()
    gc.enable()
    return found


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _redirect(log: int) -> None:
    """Redirect standard input from /dev/null, and both outputs to the log, line by line."""
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(log)
    for stream in (sys.stdout, sys.stderr):
        cast(TextIOWrapper, stream).reconfigure(line_buffering=True)


def _key(line: bytes) -> str:
    """The key in a request; empty if it can't be parsed."""
    try:
        request: Any = json.loads(line)
        return str(request["key"])
    except (ValueError, TypeError, KeyError):
        return ""


def _ignore(number: int, frame: FrameType | None) -> None:
    """Ignore the call: the signal's number arrives through the wakeup socket."""


if __name__ == "__main__":
    # The node waits for the end, and the finalization of a process with torch takes a second.
    os._exit(main(sys.argv[1:]))
