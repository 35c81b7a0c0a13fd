"""`rolecall top` and `rolecall watch` in a pseudo-terminal: they redraw, end, and leave the terminal as it was."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cluster.jobs import long_job, past_step
from tests.conftest import ROLECALL, Cluster

from rolecall.cli.exits import Exit

pytestmark = pytest.mark.slow
ROWS, COLUMNS = 40, 110
WAIT_S = 60
CTRL_C = b"\x03"
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
OTHER_SCREEN, FIRST_SCREEN = "\x1b[?1049h", "\x1b[?1049l"


class Session:
    """A command that a user has started in a terminal."""

    def __init__(self, process: subprocess.Popen[bytes], keyboard: int) -> None:
        self._process = process
        self._keyboard = keyboard
        self.shown = ""
        """Everything that the command has written, with its control sequences."""

    @property
    def text(self) -> str:
        """Likewise, without them."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.shown)

    def until(self, holds: Callable[[str], object]) -> None:
        """Read until `holds` of the text."""
        end = time.monotonic() + WAIT_S
        while not holds(self.text):
            assert time.monotonic() < end, f"it did not happen within {WAIT_S} s: {self.text[-3000:]}"
            assert self._read(1.0), f"the command has ended: {self.text[-3000:]}"

    def type(self, keys: bytes) -> None:
        os.write(self._keyboard, keys)

    def exit_code(self) -> int:
        """The exit code of the command, which must end."""
        end = time.monotonic() + WAIT_S
        while self._read(1.0):
            assert time.monotonic() < end, f"it has not ended within {WAIT_S} s: {self.text[-3000:]}"
        return self._process.wait(WAIT_S)

    def _read(self, wait_s: float) -> bool:
        """Read what is there within `wait_s` seconds. Returns False when the command has ended."""
        readable, _, _ = select.select([self._keyboard], [], [], wait_s)
        if not readable:
            return self._process.poll() is None
        self.shown += os.read(self._keyboard, 1 << 16).decode(errors="replace")
        return True


@contextmanager
def typed(cluster: Cluster, *arguments: str) -> Generator[Session]:
    """Run a command in a terminal of its own. At the end, the terminal must have its first settings and its cursor."""
    keyboard, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    before = termios.tcgetattr(terminal)
    unset = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CI"}
    environment = {name: value for name, value in cluster.environment.items() if name not in unset}
    # The terminal becomes the controlling one, so that Ctrl-C is a signal.
    command = ["setsid", "--ctty", *ROLECALL, *arguments]
    process = subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment | {"TERM": "xterm-256color"}
    )
    session = Session(process, keyboard)
    try:
        yield session
        assert process.poll() is not None, "the test has not waited for its end"
        assert termios.tcgetattr(terminal) == before
        assert session.shown.count(HIDE_CURSOR) > 0
        assert session.shown.rfind(SHOW_CURSOR) > session.shown.rfind(HIDE_CURSOR)
        assert "Traceback" not in session.text
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(keyboard)
        os.close(terminal)


def test_top_shows_what_changes_until_ctrl_c(cluster: Cluster, rows: Path) -> None:
    with typed(cluster, "top", "--interval", "0.5") as session:
        session.until(lambda text: text.count("nodes: ") >= 2)
        assert "trainer-1" in session.text
        job = cluster.submit(long_job(rows) | {"name": "seen from top"})
        session.until(lambda text: f"trainer-0 of {job}" in text and "seen from top" in text)
        session.until(lambda text: len(set(re.findall(r"step ([0-9,]+)", text))) >= 3)
        cluster.client.post(f"/jobs/{job}/cancel").raise_for_status()
        session.until(lambda text: "no job runs or waits" in text.rpartition("nodes: ")[2])
        session.type(CTRL_C)
        assert session.exit_code() == Exit.INTERRUPTED
        # What the terminal showed before is shown again.
        assert session.shown.count(OTHER_SCREEN) == session.shown.count(FIRST_SCREEN) == 1
        assert session.shown.index(OTHER_SCREEN) < session.shown.index("nodes: ") < session.shown.index(FIRST_SCREEN)


def test_watch_draws_until_the_job_ends(cluster: Cluster, rows: Path) -> None:
    job = cluster.submit(long_job(rows) | {"name": "watched"})
    cluster.until(job, past_step(10))
    with typed(cluster, "watch", job) as session:
        session.until(lambda text: len(set(re.findall(r"step ([0-9,]+)/", text))) >= 3)
        assert "loss of trainer-0: " in session.text
        assert "┤" in session.text
        cluster.client.post(f"/jobs/{job}/cancel").raise_for_status()
        assert session.exit_code() == Exit.CANCELLED
        # The last picture stays, and the outcome follows it.
        picture, _, outcome = session.text.rpartition("cancelled by admin")
        assert "loss of trainer-0: " in picture
        assert outcome.strip() == ""
        assert OTHER_SCREEN not in session.shown


def test_ctrl_c_ends_watching_but_not_the_job(cluster: Cluster, rows: Path) -> None:
    job = cluster.submit(long_job(rows))
    with typed(cluster, "watch", job, "--metric", "loss") as session:
        session.until(lambda text: "loss of trainer-0: " in text)
        session.type(CTRL_C)
        assert session.exit_code() == Exit.INTERRUPTED
        assert f"job {job} continues; to watch it again: rolecall watch {job}" in " ".join(session.text.split())
    assert cluster.job(job)["state"] == "running"
