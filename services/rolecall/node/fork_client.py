"""The node's side of the fork server: starts and restarts it, requests workers and receives their exit codes."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from pydantic import ValidationError

from rolecall.logs import about
from rolecall.orphans import children, end_children
from rolecall.process import adopt_orphans, describe_exit
from rolecall.retry import delays_s
from rolecall.settings.child_environments import for_workers, heap_variables
from rolecall.spec.errors import RolecallError
from rolecall.spec.fork import FORK_REPLY, Exited, Forked, ForkRequest, NotForked, Ready

_LOG = logging.getLogger(__name__)
# `-P`: the node's working folder has no part in where its workers find code.
COMMAND = (sys.executable, "-P", "-m", "rolecall.worker.fork_server")
_FORK_TIMEOUT_S = 60.0
_READY_TIMEOUT_S = 120.0
"""The time for the import of torch by a server that starts again. A gang waits as long for its ranks."""
_EXIT_GRACE_S = 1.0
"""More than the time in which the fork server ends what its workers leave."""
_LEFTOVERS_S = 0.5
"""Less than in the fork server, because the node's event loop waits for it."""
_REAP_S = 2.0
"""The time within which the fork server reports the end of a process."""
_DEFAULTS = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
"""Without torch's warnings about the connections of workers that have ended: pages of them follow the error that ended
the first one. The node's environment can set another level."""
# The server's one thread (see there): one for OpenMP, and none for the allocator that pyarrow brings.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}


class ForkRefused(RolecallError):
    """The fork server could not make the worker's process."""


class ForkServerDied(RolecallError):
    """The fork server died, and its workers with it; or it has died before and is not ready again in time."""


class EndNotReported(RolecallError):
    """The worker's process has ended, but its fork server does not report the exit code, which only it can get."""


class ForkedWorker(NamedTuple):
    """A worker's process, which leads its own process group."""

    pid: int
    ended: asyncio.Future[int]
    """Its exit code, negative for a signal; or `ForkServerDied`, or `EndNotReported`."""


class ForkClient:
    """Keeps one fork server running. Use it in the main thread: children die with the thread that created them."""

    def __init__(self, arguments: Sequence[str] = ()) -> None:
        self._arguments = arguments
        self._pending: dict[str, asyncio.Future[ForkedWorker]] = {}
        self._workers: dict[str, ForkedWorker] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._ready = asyncio.Event()
        self.timeout_s = _FORK_TIMEOUT_S
        self.ready_timeout_s = _READY_TIMEOUT_S
        self.restarts = 0
        self.pid: int | None = None

    async def run(self) -> None:
        """Keep a fork server running until cancelled."""
        adopt_orphans()  # A fork server that is killed leaves its workers' processes to this one.
        delays = delays_s()
        while True:
            error = None
            try:
                reason = f"the fork server ended with {describe_exit(await self._serve_once())}"
            except Exception as caught:  # noqa: BLE001 - a loop's tick: a job can have used up the machine's processes
                reason, error = f"the fork server can't be run: {type(caught).__name__}: {caught}", caught
            delays = delays_s() if self._ready.is_set() else delays
            self._on_exit(reason, error)
            self.restarts += 1
            await asyncio.sleep(next(delays))

    async def wait_ready(self) -> None:
        await self._ready.wait()

    async def fork(self, request: ForkRequest) -> ForkedWorker:
        """Fork a worker when the server is ready; raises `ForkRefused` or `ForkServerDied`."""
        try:
            async with asyncio.timeout(self.ready_timeout_s):
                await self._ready.wait()
        except TimeoutError:
            # It may still import torch, for which its successor would need as long.
            raise ForkServerDied(
                f"the node's fork server is not ready yet after {self.ready_timeout_s:g} s: it still imports torch, or "
                "ends repeatedly; see the node's log, and run the job again when the server is ready"
            ) from None
        try:
            async with asyncio.timeout(self.timeout_s):
                assert self._writer is not None
                answer = self._pending[request.key] = asyncio.get_running_loop().create_future()
                self._writer.write(request.model_dump_json().encode() + b"\n")
                return await answer
        except TimeoutError:
            # Stopped or stuck, the server would block this job and all later ones.
            if self.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
            raise ForkServerDied(f"the fork server did not answer for {self.timeout_s:g} s and was killed") from None

    async def _serve_once(self) -> int:
        earlier = children()
        ours, theirs = socket.socketpair()
        with theirs:
            # First, because a failure then leaves no process.
            reader, self._writer = await asyncio.open_connection(sock=ours, limit=1 << 20)
            try:
                process = _spawn(theirs.fileno(), self._arguments)
            except OSError:
                self._writer.close()
                raise
        self.pid = process.pid
        try:
            # A server that dies with a request unread resets the connection.
            with contextlib.suppress(ConnectionError):
                while line := await reader.readline():
                    self._read(line)
        except (KeyError, ValueError) as error:
            # A reply about a worker that this node has not requested, or a line without an end: its next replies can
            # be wrong, too.
            text = "the fork server is broken and is stopped: %s: %s"
            _LOG.error(text, type(error).__name__, error, extra=about("fork_server_broken"))
        finally:
            self._writer.close()
            process.terminate()  # A server that still runs kills its workers and exits.
            try:
                status = process.wait(_EXIT_GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                status = process.wait()
            self.pid = None
            _end_orphans(earlier)
        return status

    def _read(self, line: bytes) -> None:
        """Handle one message. After an upgrade below a running node, the fork server may send unknown messages."""
        try:
            reply = FORK_REPLY.validate_json(line)
        except ValidationError as error:
            text = "a message of the fork server is ignored: %r (%s)"
            _LOG.warning(text, line[:200], error, extra=about("fork_reply_unreadable"))
            return
        match reply:
            case Ready():
                _LOG.info("the fork server is ready (process %s)", self.pid, extra=about("fork_server_ready"))
                self._ready.set()
            case Forked(key=key, pid=pid):
                worker = self._workers[key] = ForkedWorker(pid, asyncio.get_running_loop().create_future())
                _expect_end(worker)
                _settle(self._pending.pop(key), worker)
            case NotForked(key=key, message=message):
                _settle(self._pending.pop(key), ForkRefused(f"the fork server could not start the worker: {message}"))
            case Exited(key=key, status=status):
                _settle(self._workers.pop(key).ended, status)

    def _on_exit(self, reason: str, cause: Exception | None) -> None:
        """Fail everything that waits for this server."""
        self._ready.clear()
        _LOG.error("%s; restarting it", reason, exc_info=cause, extra=about("fork_server_ended"))
        error = ForkServerDied(reason)
        for waiting in self._pending.values():
            _settle(waiting, error)
        for worker in self._workers.values():
            kill_group(worker.pid)
            _settle(worker.ended, error)
        self._pending.clear()
        self._workers.clear()


def _end_orphans(earlier: set[int]) -> None:
    """Kill what a fork server has left: the children that are not `earlier` ones and not in this process's session.

    Programs that the node itself runs are in its session, which no process of a worker can join.
    """

    def find() -> set[int]:
        return {pid for pid in children() - earlier if _session_of(pid) not in {None, os.getsid(0)}}

    if remaining := end_children(find, _LEFTOVERS_S):
        text = "processes that the fork server left have not ended within %g s of a SIGKILL: %s"
        named = ", ".join(map(str, sorted(remaining)))
        _LOG.warning(text, _LEFTOVERS_S, named, extra=about("leftover_processes"))


def _session_of(pid: int) -> int | None:
    """The session of a process; None if it is reaped meanwhile."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _expect_end(worker: ForkedWorker) -> None:
    """Detect the end of the worker's process even if its fork server is stopped or stuck."""
    try:
        descriptor = os.pidfd_open(worker.pid)
    except ProcessLookupError:
        return  # It has ended and is reaped: the server's message follows.
    except OSError as error:
        # An old kernel, a seccomp filter, or no descriptor left. A server that still answers reports the end.
        text = "only the fork server reports the end of process %d: pidfd_open: %s"
        _LOG.warning(text, worker.pid, error, extra=about("pidfd_unavailable"))
        return
    loop = asyncio.get_running_loop()

    def on_end() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        why = f"process {worker.pid} ended, and its fork server (stopped or stuck?) did not report how"
        loop.call_later(_REAP_S, _settle, worker.ended, EndNotReported(why))

    loop.add_reader(descriptor, on_end)


def kill_group(pid: int) -> None:
    """Kill a worker and the processes that it started."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        # Just forked, it may not lead its group yet. Then it has started no processes either.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _settle(future: "asyncio.Future[ForkedWorker] | asyncio.Future[int]", outcome: object) -> None:
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
        future.exception()  # Nobody may wait any longer. The error is logged where it occurs.
    else:
        future.set_result(outcome)  # pyright: ignore[reportArgumentType]


def _spawn(fd: int, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - a constant command
        [*COMMAND, str(fd), *arguments],
        env=_DEFAULTS | for_workers(os.environ) | _ONE_THREAD | heap_variables(os.environ),
        pass_fds=(fd,),
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # A terminal's Ctrl-C must reach only the node.
    )
