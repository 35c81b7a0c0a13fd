"""Calls in threads of their own."""

import threading

import pytest

from rolecall.daemon_thread import call_aside, run_in_daemon_thread


@pytest.fixture
def _no_thread_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)


@pytest.mark.usefixtures("_no_thread_starts")
async def test_a_machine_without_a_free_thread_is_a_failure_of_the_system_call() -> None:
    with pytest.raises(OSError, match="can't start new thread"):
        await run_in_daemon_thread(print)


@pytest.mark.usefixtures("_no_thread_starts")
def test_a_call_aside_needs_no_thread() -> None:
    called: list[int] = []
    call_aside(called.append, 1)
    assert called == [1]
