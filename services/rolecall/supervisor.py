"""Runs programs in parallel, for the master's container and `rolecall local`.

The supervisor has one thread, which waits for signals. Its children have their own sessions, so that a terminal's
Ctrl-C reaches only the supervisor, and they die with it even if it is killed.
"""

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from rolecall.logs import about
from rolecall.process import describe_exit, die_with_parent
from rolecall.retry import delay_s

_LOG = logging.getLogger(__name__)
_EXIT_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_SIGNALS = _EXIT_SIGNALS | {signal.SIGCHLD}
_STEADY_S = 60.0
_LONGEST_DELAY_S = 30.0
_MAX_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class SupervisedProgram:
    """A command to run. Programs may depend on earlier ones, so they are stopped before them."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path | None = None
    """The file for its output; by default, the supervisor's output."""


@dataclass(slots=True)
class _Child:
    program: SupervisedProgram
    process: subprocess.Popen[bytes]
    started: float
    failures: int = 0
    restart_at: float | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """A program that ended without a request; `code` is a return code of `subprocess`."""

    program: SupervisedProgram
    code: int


def restart_delay_s(failures: int) -> float:
    """Seconds to wait before restarting a program that has failed `failures` times in a row."""
    return delay_s(failures + 1, first=0.25, most=_LONGEST_DELAY_S)


class Supervisor:
    """Starts its programs on entry and stops them on exit. Use it in the main thread.

    `should_exit` is true after a signal to the supervisor. Programs that don't end within `grace_s` seconds after
    SIGTERM are killed; without `grace_s`, only a second signal kills them.
    """

    def __init__(
        self,
        programs: Sequence[SupervisedProgram],
        *,
        grace_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._programs = programs
        self._grace_s = grace_s
        self._clock = clock
        self._children: list[_Child] = []
        self._undo = ExitStack()
        self.should_exit = False

    def __enter__(self) -> "Supervisor":
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self._undo.callback(signal.pthread_sigmask, signal.SIG_SETMASK, before)
        self._undo.callback(self._stop_all)
        try:
            for program in self._programs:
                self._children.append(_Child(program, _spawn(program), self._clock()))
        except OSError:
            self._undo.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._undo.close()

    def wait(self, timeout_s: float | None = None) -> list[Ended]:
        """Return the programs that have ended, after a signal, a restart, the timeout, or at most a second."""
        waits = [child.restart_at - self._clock() for child in self._children if child.restart_at is not None]
        if self._await_exit_signal(max(0.0, min([*waits, _MAX_WAIT_S if timeout_s is None else timeout_s]))):
            self.should_exit = True
        ended = [
            self._on_exit(child)
            for child in self._children
            if child.restart_at is None and child.process.poll() is not None
        ]
        for child in self._children:
            if child.restart_at is not None and child.restart_at <= self._clock() and not self.should_exit:
                child.process, child.started, child.restart_at = _spawn(child.program), self._clock(), None
                text = "%s restarted as process %d"
                _LOG.warning(text, child.program.name, child.process.pid, extra=about("program_restarted"))
        return ended

    def _await_exit_signal(self, timeout_s: float | None) -> bool:
        """Wait for a signal, for a second at most; return whether it asks the supervisor to exit."""
        # If a library has started a thread, the kernel may deliver SIGCHLD there, where it is ignored.
        received = signal.sigtimedwait(_SIGNALS, _MAX_WAIT_S if timeout_s is None else min(timeout_s, _MAX_WAIT_S))
        return received is not None and received.si_signo in _EXIT_SIGNALS

    def _on_exit(self, child: _Child) -> Ended:
        steady = self._clock() - child.started > _STEADY_S
        child.failures = 0 if steady else child.failures + 1
        wait_s = restart_delay_s(child.failures)
        child.restart_at = self._clock() + wait_s
        code = child.process.returncode
        text = "%s ended with %s; restart in %.1f s"
        _LOG.warning(text, child.program.name, describe_exit(code), wait_s, extra=about("program_ended"))
        return Ended(child.program, code)

    def _stop_all(self) -> None:
        """Stop all programs, the first one after the others. Another signal kills those that still run."""
        deadline = None if self._grace_s is None else self._clock() + self._grace_s
        processes = [child.process for child in self._children]
        for group in (processes[1:], processes[:1]):
            for process in group:
                process.send_signal(signal.SIGTERM)
            while any(process.poll() is None for process in group):
                left_s = None if deadline is None else deadline - self._clock()
                if (left_s is not None and left_s <= 0) or self._await_exit_signal(left_s):
                    deadline = self._clock()  # The other group gets no more time either.
                    for process in group:
                        process.kill()
                        process.wait()


def _spawn(program: SupervisedProgram) -> subprocess.Popen[bytes]:
    supervisor = os.getpid()

    def prepare() -> None:  # runs in the child, before the program
        try:
            die_with_parent()
        except OSError as error:
            os.write(2, f"{program.name} would outlive its supervisor: {error.strerror}\n".encode())
            os._exit(os.EX_OSERR)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if os.getppid() != supervisor:
            os._exit(1)

    with ExitStack() as stack:
        output = stack.enter_context(program.log.open("ab")) if program.log else None
        return subprocess.Popen(  # noqa: S603 - the command is our own
            program.command,
            env=program.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            start_new_session=True,
            preexec_fn=prepare,  # noqa: PLW1509 - this process has one thread
        )
