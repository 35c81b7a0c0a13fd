# pyright: standard
"""A worker's state on its node, without a node. `test_measurements` tests what is read of its measurements."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.clock import ManualClock
from tests.node.harness import launch

from rolecall.node import worker_process
from rolecall.node.worker_process import WorkerProcess
from rolecall.spec import shared_memory
from rolecall.spec.report import Failure
from rolecall.spec.state import StopMode, WorkerState

NOW = datetime(2026, 1, 2, tzinfo=UTC)
TIMEOUT_S = 60.0
FAILURE = Failure(message="ValueError: broken", traceback="Traceback", at=NOW)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def worker(tmp_path: Path, clock: ManualClock) -> Iterator[WorkerProcess]:
    """A worker with a folder, and without a process."""
    worker = WorkerProcess(launch("a", "stay"), tmp_path, TIMEOUT_S, 1000, lambda: None, clock=clock, now=lambda: NOW)
    worker.make_folder()
    yield worker
    worker.shipped()
    worker.forget()


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes whose groups are killed, of which none exists."""
    found: list[int] = []
    monkeypatch.setattr(worker_process, "kill_group", found.append)
    return found


def test_the_failure_that_a_worker_wrote_is_its_cause(worker: WorkerProcess) -> None:
    worker.workdir.failure.write_text(FAILURE.model_dump_json())
    assert worker.ended(1) == (WorkerState.FAILED, FAILURE)


@pytest.mark.parametrize("written", [b"", b"{", b"[1]", b"\xff", b'{"message": "' + b"x" * (1 << 20)])
def test_a_failure_that_cant_be_read_leaves_the_exit_status(worker: WorkerProcess, written: bytes) -> None:
    worker.workdir.failure.write_bytes(written)
    state, failure = worker.ended(3)
    assert state is WorkerState.FAILED
    assert failure is not None
    assert "without reporting a failure" in failure.message


def test_a_link_instead_of_the_failure_is_not_followed(worker: WorkerProcess, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(FAILURE.model_dump_json())
    worker.workdir.failure.symlink_to(tmp_path / "secret")
    _, failure = worker.ended(3)
    assert failure is not None
    assert failure.message != FAILURE.message


def test_a_worker_without_a_process_is_stopped_only_if_its_gang_was(worker: WorkerProcess, killed: list[int]) -> None:
    state, failure = worker.lost("the fork server ended")
    assert state is WorkerState.FAILED
    assert failure is not None
    assert failure.message == "the fork server ended"
    worker.forked(7)
    worker.kill()
    assert worker.lost("the fork server ended") == (WorkerState.STOPPED, None)
    assert killed == [7, 7], "a process whose end is not reported is killed"
    assert worker.pid is None


def test_a_worker_that_is_killed_before_its_process_is_known_does_not_run(worker: WorkerProcess) -> None:
    worker.kill("too late")
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        worker.forked(process.pid)
        assert process.wait(10) == -signal.SIGKILL
    _, failure = worker.ended(-signal.SIGKILL)
    assert failure is not None
    assert failure.message == "too late"


@pytest.mark.parametrize("forgotten_first", [False, True])
def test_the_folder_stays_until_it_is_forgotten_and_its_output_is_shipped(
    worker: WorkerProcess, forgotten_first: bool
) -> None:
    steps = [worker.shipped, worker.forget]
    first, second = steps[::-1] if forgotten_first else steps
    first()
    assert worker.workdir.path.exists()
    second()
    assert not worker.workdir.path.exists()


def test_a_stop_request_reaches_the_folder_if_there_is_one(worker: WorkerProcess, clock: ManualClock) -> None:
    worker.ask(StopMode.CANCEL)
    clock.now += 3.0
    assert worker.actual.asked_s == 3.0
    assert worker.workdir.stop.read_text() == StopMode.CANCEL
    worker.shipped()
    worker.forget()
    worker.ask(StopMode.CANCEL)
    assert worker.actual.asked_s == 0.0


def test_texts_that_the_master_refuses_are_removed_once(worker: WorkerProcess) -> None:
    assert not worker.drop_texts("no failure yet")
    worker.finish(WorkerState.FAILED, FAILURE, exit_code=1)
    assert worker.drop_texts("the body has a lone surrogate; " * 100)
    left = worker.report.failure
    assert left is not None
    assert left.traceback == ""
    assert "broken" not in left.message
    assert len(left.message) <= 500
    assert left.at == NOW
    assert not worker.drop_texts("again"), "nothing is left to remove"
    assert worker.report.failure == left


@pytest.fixture
def hangs(worker: WorkerProcess, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Makes the worker hang from now on. Returns the processes that are asked for their stacks, and can write them."""
    asked: list[int] = []
    monkeypatch.setattr(worker_process, "process_state", lambda _pid: "S")
    monkeypatch.setattr(worker_process, "request_stacks", lambda pid, _state: asked.append(pid) is None)
    beat(worker, 1)
    worker.forked(7)
    worker.observe()
    clock.now += TIMEOUT_S
    worker.observe()
    assert asked == [], "not yet"
    clock.now += 1.0
    worker.observe()
    return asked


def beat(worker: WorkerProcess, at_ns: int) -> None:
    """A heartbeat at this time."""
    worker.workdir.beat.touch()
    os.utime(worker.workdir.beat, ns=(at_ns, at_ns))


def observed(worker: WorkerProcess, clock: ManualClock) -> None:
    """Observe the worker for a second."""
    for _ in range(4):
        clock.now += 0.25
        worker.observe()


def test_a_hung_worker_can_write_its_stacks_before_it_is_killed(
    worker: WorkerProcess, clock: ManualClock, killed: list[int], hangs: list[int]
) -> None:
    assert (hangs, killed) == ([7], [])
    observed(worker, clock)
    assert (hangs, killed) == ([7], [7]), "each once"
    _, failure = worker.ended(-signal.SIGKILL)
    assert failure is not None
    assert "no heartbeat for 60 s" in failure.message
    assert "the end of its log has the stacks" in failure.message


def test_a_worker_that_beats_again_is_not_killed(
    worker: WorkerProcess, clock: ManualClock, killed: list[int], hangs: list[int]
) -> None:
    beat(worker, 2)
    observed(worker, clock)
    assert (hangs, killed) == ([7], [])
    clock.now += TIMEOUT_S
    worker.observe()
    assert (hangs, killed) == ([7, 7], []), "the next time, it has the time to write them again"


def test_a_hung_worker_that_can_write_no_stacks_is_killed_at_once(
    worker: WorkerProcess, clock: ManualClock, killed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "process_state", lambda _pid: "D")
    worker.forked(7)
    worker.observe()
    clock.now += TIMEOUT_S + 1.0
    worker.observe()
    assert killed == [7]


def test_a_worker_that_was_killed_leaves_no_names_in_shared_memory(
    worker: WorkerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "SHARED_MEMORY", tmp_path)
    own = [shared_memory.block_name(worker.launch, number) for number in (0, 12, 40)]
    own.append(shared_memory.presence_name(worker.launch, worker.launch.worker.rank))
    other = worker.launch.model_copy(update={"worker": worker.launch.worker.model_copy(update={"rank": 7})})
    others = {"nccl-1", shared_memory.block_name(other, 0)}
    for name in (*own, *others):
        (tmp_path / name).touch()
    (tmp_path / shared_memory.block_name(worker.launch, 1)).mkdir()
    worker.finish(WorkerState.FAILED)
    deadline = time.monotonic() + 10
    while {one.name for one in tmp_path.iterdir() if one.is_file()} != others:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_machine_without_shared_memory_ends_workers_as_usual(
    worker: WorkerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "SHARED_MEMORY", tmp_path / "none")
    worker.finish(WorkerState.SUCCEEDED)
    assert worker.report.state is WorkerState.SUCCEEDED
