"""The end states and the hung states of a worker's process."""

import signal
from datetime import UTC, datetime

import pytest

from rolecall.node.vitals import Vitals, classify_exit
from rolecall.spec.report import Failure
from rolecall.spec.state import WorkerState

NOW = datetime.now(UTC)
WRITTEN = Failure(message="ValueError: no", at=NOW)
KILL = -signal.SIGKILL


@pytest.mark.parametrize(
    ("status", "written", "killed", "oom", "state", "message"),
    [
        (0, None, None, None, WorkerState.SUCCEEDED, None),
        (75, None, None, None, WorkerState.STOPPED, None),
        (1, WRITTEN, None, None, WorkerState.FAILED, "ValueError: no"),
        (KILL, WRITTEN, "", None, WorkerState.FAILED, "ValueError: no"),
        (KILL, None, "", None, WorkerState.STOPPED, None),
        (KILL, None, "sent no heartbeat", None, WorkerState.FAILED, "sent no heartbeat"),
        (KILL, None, None, None, WorkerState.FAILED, "killed by SIGKILL (out of memory?)"),
        (KILL, None, None, False, WorkerState.FAILED, "killed by SIGKILL"),
        (KILL, None, None, True, WorkerState.FAILED, "killed by SIGKILL (out of memory)"),
        (-signal.SIGABRT, None, None, True, WorkerState.FAILED, "killed by SIGABRT"),
    ],
)
def test_classify_exit(  # noqa: PLR0917
    status: int, written: Failure | None, killed: str | None, oom: bool | None, state: WorkerState, message: str | None
) -> None:
    ended, failure = classify_exit(status, written, killed=killed, oom=oom, now=NOW)
    assert (ended, failure.message if failure else None) == (state, message)


def test_an_exit_without_a_word_is_a_failure() -> None:
    state, failure = classify_exit(3, None, killed=None, oom=None, now=NOW)
    assert state is WorkerState.FAILED
    assert failure is not None
    assert "exit code 3" in failure.message


def test_a_short_stop_is_forgiven_and_a_long_one_is_not() -> None:
    vitals = Vitals(timeout_s=30)
    assert vitals.observe("T", 1, 10.0) is None
    assert vitals.observe("S", 2, 12.0) is None
    assert vitals.observe("T", 3, 13.0) is None
    assert vitals.observe("T", 3, 15.9) is None
    assert "stopped" in (vitals.observe("T", 3, 16.1) or "")


def test_silence_counts_from_the_last_beat() -> None:
    vitals = Vitals(timeout_s=5)
    assert vitals.observe("S", None, 0.0) is None
    assert vitals.observe("S", 1, 4.0) is None
    assert vitals.observe("D", 1, 8.9) is None
    assert "sent no heartbeat" in (vitals.observe("D", 1, 9.1) or "")
