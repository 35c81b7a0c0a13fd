# pyright: standard
"""The children of this process, and their ends."""

import errno
import os
import signal
import subprocess
from pathlib import Path

import pytest

from rolecall import orphans
from rolecall.orphans import children, end_children


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "CONFIG_PROC_CHILDREN=n"])
def test_all_children_are_found_and_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: bool) -> None:
    if not listed:
        (tmp_path / "self/task/1").mkdir(parents=True)
        monkeypatch.setattr(orphans, "_PROCESSES", tmp_path)
    before = children()
    started = {os.posix_spawnp("sleep", ["sleep", "60"], os.environ) for _ in range(3)}
    assert children() - before == started
    assert end_children(lambda: children() - before, 5.0) == set()
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_children_that_end_by_themselves_are_not_killed(tmp_path: Path) -> None:
    before = children()
    os.posix_spawnp("sh", ["sh", "-c", f"sleep 0.02; touch {tmp_path}/done"], os.environ)
    assert end_children(lambda: children() - before, 5.0) == set()
    assert (tmp_path / "done").exists()


def test_what_does_not_end_in_time_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "kill", lambda *_: None)
    with subprocess.Popen(["sleep", "60"]) as process:
        assert end_children(lambda: {process.pid}, 0.01) == {process.pid}
        monkeypatch.undo()
        process.kill()


def test_a_signal_that_the_container_refuses_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[int] = []

    def refuse(descriptor: int, number: int) -> None:
        refused.append(number)
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "kill", lambda *_: None)  # The parent remains, so its child is found.
    monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
    command = ["sh", "-c", "sleep 60 & echo; wait"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert end_children(lambda: {process.pid}, 0.15) == {process.pid}
        monkeypatch.undo()
        os.killpg(process.pid, signal.SIGKILL)
    assert set(refused) == {signal.SIGKILL}
