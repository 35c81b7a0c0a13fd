"""A real daemon, fork server and workers, against a scripted master on a real socket."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from tests.node.harness import (
    METRICS_TOKEN,
    TOKEN,
    ScriptedMaster,
    await_true,
    descendants,
    end,
    gone,
    launch,
    running_node,
    working_node,
)

from rolecall.node.reconcile import Key
from rolecall.spec.finding import Level
from rolecall.spec.state import StopMode, WorkerState

# Each starts a fork server, which imports torch.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def master(data: Path) -> Iterator[ScriptedMaster]:
    """A master with one node, shared by the tests that leave the node alive."""
    with working_node(data) as master:
        yield master


def test_a_worker_that_returns_has_succeeded_and_its_output_came_first(master: ScriptedMaster, data: Path) -> None:
    key = master.want(launch("good", "succeed"))
    report = master.ended(key)
    assert (report.state, report.exit_code) == (WorkerState.SUCCEEDED, 0)
    assert report.joined_at
    assert report.spawned_at
    assert report.pid
    assert master.at_end[key] == b"hello from good/1/0\n"
    master.drop(key)
    master.wait(lambda: key not in master.reports)
    assert (data / "nodes/n/work").exists()
    assert not (data / "nodes/n/work/good").exists()


def test_many_short_jobs_leave_nothing_on_the_node(master: ScriptedMaster, data: Path) -> None:
    def entries() -> set[Path]:
        return {path for depth in ("*", "nodes/n/*", "nodes/n/work/*") for path in data.glob(depth)}

    master.ended(first := master.want(launch("first", "succeed")))
    master.drop(first)
    master.wait(lambda: first not in master.reports)
    before = entries()
    for attempt in (1, 2):
        acts = [(f"short-{number}", act) for number in range(6) for act in ("succeed", "fail")]
        keys = [master.want(launch(job, act, rank, attempt)) for rank, (job, act) in enumerate(acts)]
        for key in keys:
            master.ended(key)
            master.drop(key)
        master.wait(lambda keys=keys: not master.reports.keys() & set(keys))
    assert entries() == before


FULL_FOLDER = """
from pathlib import Path
from rolecall.node import findings, self_check
check = self_check._check_disk
def check_disk(data):
    return findings.unwritable(str(data), "it is full") if Path({full!r}).exists() else check(data)
self_check._check_disk = check_disk
"""


def test_the_report_of_a_failure_comes_with_the_state_of_the_machine(tmp_path: Path) -> None:
    """The machine may be the cause, so the master must not place the next attempt there."""
    full = tmp_path / "full"
    prelude = FULL_FOLDER.format(full=str(full))
    master = ScriptedMaster()
    with master.serving(), running_node(master, tmp_path / "data", prelude=prelude):
        master.wait(lambda: master.beats, 60)
        full.touch()
        key = master.want(launch("bad", "fail"))
        assert master.ended(key).state is WorkerState.FAILED
        reported = next(beat for beat in master.beats if any(report.state.ended for report in beat.workers))
        assert any(finding.check == "disk" and finding.level is Level.ERROR for finding in reported.findings)


def test_a_failure_is_what_the_worker_wrote(master: ScriptedMaster) -> None:
    report = master.ended(master.want(launch("bad", "fail")))
    assert report.state is WorkerState.FAILED
    assert report.failure
    assert report.failure.message == "ValueError: no"


def test_an_error_nobody_expects_costs_one_worker(master: ScriptedMaster) -> None:
    """Here an offset that no file can have."""
    master.reported_size = 1 << 70
    try:
        report = master.ended(master.want(launch("unexpected", "stay")))
        assert report.failure
        assert "the node failed to run the worker: OverflowError" in report.failure.message
    finally:
        master.reported_size = None
    assert gone({report.pid or 0}, 5.0)
    assert master.ended(master.want(launch("expected", "succeed"))).state is WorkerState.SUCCEEDED


def test_a_death_by_signal_is_named(master: ScriptedMaster) -> None:
    report = master.ended(master.want(launch("segv", "die")))
    assert (report.exit_code, report.failure and report.failure.message) == (-signal.SIGSEGV, "killed by SIGSEGV")


def test_a_killed_worker_is_reported_at_once(master: ScriptedMaster) -> None:
    key = master.want(launch("killed", "stay"))
    os.kill(master.joined(key).pid or 0, signal.SIGKILL)
    report = master.ended(key, 1.0)
    assert report.state is WorkerState.FAILED
    assert report.failure
    assert report.failure.message.startswith("killed by SIGKILL")


def test_a_stopped_worker_is_noticed(master: ScriptedMaster) -> None:
    key = master.want(launch("stopped", "stay"))
    os.kill(master.joined(key).pid or 0, signal.SIGSTOP)
    report = master.ended(key, 5.0)
    assert report.state is WorkerState.FAILED
    assert report.failure
    assert "SIGSTOP" in report.failure.message


def test_an_abort_kills_at_once_with_all_children(master: ScriptedMaster) -> None:
    key = master.want(launch("abort", "daemonize"))
    pid = master.joined(key).pid or 0
    family = {pid, *descendants(pid)}
    assert len(family) == 2
    master.want(launch("abort", "daemonize"), StopMode.ABORT)
    assert master.ended(key, 1.0).state is WorkerState.STOPPED
    assert gone(family, 0.0), "the report follows the end of all"


def test_children_of_a_worker_that_dies_go_with_it(master: ScriptedMaster) -> None:
    key = master.want(launch("orphans", "breed"))
    pid = master.joined(key).pid or 0
    master.wait(lambda: "child" in master.text(key))
    child = int(re.findall(r"child (\d+)", master.text(key))[0])
    os.kill(pid, signal.SIGKILL)
    assert gone({child}, 5.0)


def test_a_worker_that_is_asked_may_leave(master: ScriptedMaster) -> None:
    key = master.want(launch("asked", "obey"))
    master.joined(key)
    master.want(launch("asked", "obey"), StopMode.CANCEL)
    assert master.ended(key, 1.0).state is WorkerState.STOPPED
    assert "asked: cancel" in master.text(key)


def test_a_worker_that_does_not_leave_is_killed_after_the_grace_time(master: ScriptedMaster) -> None:
    key = master.want(launch("deaf", "stay"))
    master.joined(key)
    began = time.monotonic()
    master.want(launch("deaf", "stay"), StopMode.CANCEL)
    assert master.ended(key, 3.0).state is WorkerState.STOPPED
    assert time.monotonic() - began >= 1.0


def test_the_log_of_a_worker_that_hangs_ends_with_its_stacks(tmp_path: Path) -> None:
    with working_node(tmp_path, ROLECALL_WORKER_TIMEOUT_S="1") as master:
        key = master.want(launch("stuck", "grip"))
        report = master.ended(key, 20.0)
        assert report.failure is not None
        assert "sent no heartbeat for 1 s" in report.failure.message
        assert report.failure.message.endswith("; the end of its log has the stacks of its threads")
        text = master.text(key)
        assert "most recent call first" in text
        assert re.search(r'plays\.py", line [0-9]+ in grip\n', text)


def test_a_worker_that_is_not_desired_is_killed(master: ScriptedMaster) -> None:
    key = master.want(launch("unwanted", "stay"))
    pid = master.joined(key).pid or 0
    master.drop(key)
    assert gone({pid}, 5.0)


def test_a_gang_that_stops_before_its_start_is_declined(master: ScriptedMaster) -> None:
    report = master.ended(master.want(launch("late", "succeed"), StopMode.CANCEL))
    assert (report.state, report.pid) == (WorkerState.STOPPED, None)


def test_the_port_goes_from_rank_0_to_the_others(master: ScriptedMaster) -> None:
    master.want(launch("meet", "meet", 0))
    other = master.want(launch("meet", "meet", 1))
    port = master.wait(lambda: (found := master.reports.get(Key("meet", 1, 0))) and found.rendezvous_port)
    master.want(launch("meet", "meet", 1).model_copy(update={"rendezvous_port": port}))
    assert master.ended(other).state is WorkerState.SUCCEEDED
    assert "port 4321" in master.text(other)


def test_a_worker_gets_its_environment_and_no_secret(master: ScriptedMaster) -> None:
    key = master.want(launch("env", "reveal"))
    master.ended(key)
    assert "no token" in master.text(key)
    assert "interface lo gpus ''" in master.text(key)
    assert "leader True stdin ''" in master.text(key)


def test_the_threads_of_a_worker_share_one_heap(master: ScriptedMaster) -> None:
    """Otherwise what a thread frees stays with this thread, and the process grows."""
    key = master.want(launch("heaps", "allocate"))
    master.ended(key)
    assert "heaps 1\n" in master.text(key)


def test_a_chunk_that_is_sent_twice_changes_nothing(master: ScriptedMaster) -> None:
    master.repeat_chunks = True
    key = master.want(launch("twice", "succeed"))
    master.ended(key)
    assert master.text(key) == "hello from twice/1/0\n"


def test_a_long_log_does_not_hold_back_the_report_of_the_end(master: ScriptedMaster, data: Path) -> None:
    """32 chunks of 0.1 s each: the gang's slots must not wait for them, but nothing of the log is lost."""
    master.slow_log_s = 0.1
    key = master.want(launch("loud", "shout"))
    report = master.ended(key, 20.0)
    assert report.failure
    assert report.failure.message == "ValueError: no"
    assert not master.text(key).endswith("the end\n")
    master.drop(key)
    master.wait(lambda: key not in master.reports)
    master.wait(lambda: master.text(key).endswith("the end\n"))
    master.slow_log_s = 0.0
    assert len(master.text(key)) == len("hello from loud/1/0\n") + 32 * ((1 << 18) + 1) + len("the end\n")
    deadline = time.monotonic() + 5
    while (data / "nodes/n/work/loud").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_worker_that_dies_while_its_fork_server_is_stopped_is_noticed(master: ScriptedMaster) -> None:
    key = master.want(launch("unseen", "stay"))
    worker = psutil.Process(master.joined(key).pid or 0)
    server = worker.parent()
    assert server
    server.suspend()
    try:
        worker.kill()
        report = master.ended(key, 5.0)
    finally:
        server.resume()
    assert report.failure
    assert "did not report how" in report.failure.message
    assert master.ended(master.want(launch("seen-again", "succeed"))).state is WorkerState.SUCCEEDED


@pytest.mark.parametrize("status", [401, 403, 429])
def test_a_refusal_after_the_first_success_ends_nothing(master: ScriptedMaster, status: int) -> None:
    """A proxy in between, or a token that is being rotated: training needs no master."""
    key = master.want(launch(f"refused-{status}", "stay"))
    pid = master.joined(key).pid or 0
    before = master.refused
    master.refusal = status
    try:
        master.wait(lambda: master.refused > before + 3)
    finally:
        master.refusal = None
    beats = len(master.beats)
    master.wait(lambda: len(master.beats) > beats)
    assert master.reports[key].pid == pid
    assert not gone({pid}, 0)
    if status != 429:
        findings = master.wait(lambda: [one for one in master.beats[-1].findings if one.check == "master"])
        assert "it was refused for" in findings[0].message
    master.drop(key)


def scrape(url: str, token: str = METRICS_TOKEN) -> httpx.Response:
    return httpx.get(f"{url}/metrics", headers={"Authorization": f"Bearer {token}"})


def test_a_log_that_the_master_has_no_room_for_holds_up_nothing_else(master: ScriptedMaster) -> None:
    master.full = True
    key = master.want(launch("full", "stay"))
    master.joined(key)
    master.wait(lambda: b'"step"' in master.streams.get((key, "progress"), b""))
    master.wait(lambda: key in master.refused_logs)
    master.full = False
    master.wait(lambda: master.text(key) == "hello from full/1/0\n")
    assert master.refused_logs.count(key) <= 2, "it is not sent again and again meanwhile"
    master.drop(key)


def test_metrics_show_a_worker_as_long_as_it_is_there(master: ScriptedMaster) -> None:
    key = master.want(launch("seen", "stay"))
    master.joined(key)
    url = f"http://127.0.0.1:{master.specs[-1].metrics_port}"
    labels = '{attempt="1",job="seen",rank="0",role="trainer"}'
    master.wait(lambda: f"rolecall_worker_step{labels} 3.0" in scrape(url).text)
    shown = scrape(url).text
    assert f"rolecall_worker_loss{labels} 0.25" in shown
    assert f"rolecall_worker_resident_memory_bytes{labels}" in shown
    assert "rolecall_node_worker_starts_total" in shown
    assert httpx.get(f"{url}/metrics").status_code == 401
    assert [scrape(url, token).status_code for token in (TOKEN, "another-token")] == [200, 401]
    assert httpx.get(f"{url}/healthz").json()["status"] == "ok"
    master.drop(key)
    master.wait(lambda: key not in master.reports)
    assert 'job="seen"' not in scrape(url).text


def test_workers_continue_while_the_master_is_unavailable_and_their_end_is_reported_later(tmp_path: Path) -> None:
    master = ScriptedMaster()
    with running_node(master, tmp_path, ROLECALL_STOP_GRACE_S="60") as node:
        with master.serving():
            key = master.want(launch("away", "stay"))
            pid = master.joined(key).pid or 0
        assert not gone({pid}, 0.5)
        os.kill(pid, signal.SIGKILL)
        assert gone({pid}, 5.0)
        with master.serving():
            assert master.ended(key, 5.0).exit_code == -signal.SIGKILL
            assert len(master.specs) == 1
            assert master.at_end[key]
            _leaves(node, master)


def test_a_dead_fork_server_fails_its_workers_and_is_started_again(tmp_path: Path) -> None:
    master = ScriptedMaster()
    with master.serving(), running_node(master, tmp_path, ROLECALL_STOP_GRACE_S="60") as node:
        key = master.want(launch("forker", "daemonize"))
        pid = master.joined(key).pid or 0
        (server,) = (child.pid for child in psutil.Process(node.pid).children())
        fled = descendants(pid)
        assert len(fled) == 1
        os.kill(server, signal.SIGKILL)
        report = master.ended(key, 2.0)
        assert report.failure
        assert "the fork server ended with SIGKILL" in report.failure.message
        assert gone({pid, *fled}, 5.0)
        assert master.ended(master.want(launch("next", "succeed")), 60).state is WorkerState.SUCCEEDED
        master.drop(key)
        master.drop(Key("next", 1, 0))
        master.wait(lambda: not master.reports)
        _leaves(node, master)


def test_nothing_outlives_a_killed_node(tmp_path: Path) -> None:
    master = ScriptedMaster()
    with master.serving(), running_node(master, tmp_path) as node:
        key = master.want(launch("doomed", "breed"))
        master.joined(key)
        master.wait(lambda: "child" in master.text(key))
        family = descendants(node.pid)
        assert len(family) == 3
        end(node)
        assert gone(family, 2.0)


def test_a_node_that_is_asked_to_end_drains(tmp_path: Path) -> None:
    master = ScriptedMaster()
    with master.serving(), running_node(master, tmp_path, ROLECALL_STOP_GRACE_S="10") as node:
        key = master.want(launch("drained", "obey"))
        master.joined(key)
        family = descendants(node.pid)
        node.send_signal(signal.SIGTERM)
        assert node.wait(5) == 0
        assert "asked: drain" in master.text(key)
        assert [name for name, _ in master.left] == ["n"]
        assert gone(family, 5.0)


def test_a_second_signal_forces_the_exit(tmp_path: Path) -> None:
    master = ScriptedMaster()
    with master.serving(), running_node(master, tmp_path, ROLECALL_STOP_GRACE_S="60") as node:
        master.joined(master.want(launch("forced", "stay")))
        family = descendants(node.pid)
        node.send_signal(signal.SIGINT)
        master.wait(lambda: master.beats[-1].draining)
        node.send_signal(signal.SIGINT)
        assert node.wait(3) == 0
        assert gone(family, 5.0)


FAILING_CACHE = """
import errno
from pathlib import Path
from rolecall.node import daemon
evict = daemon.evict_all
daemon._EVICT_EVERY_S = 0.05
def evict_all(caches, max_bytes):
    if not Path({mended!r}).exists():
        Path({failed!r}).touch()
        raise OSError(errno.ESTALE, "Stale file handle", str(caches))
    Path({evicted!r}).touch()
    return evict(caches, max_bytes)
daemon.evict_all = evict_all
"""


def test_a_cache_that_fails_ends_no_worker(tmp_path: Path) -> None:
    master, paths = ScriptedMaster(), {name: tmp_path / name for name in ("failed", "mended", "evicted")}
    prelude = FAILING_CACHE.format(**{name: str(path) for name, path in paths.items()})
    with master.serving(), running_node(master, tmp_path / "data", prelude=prelude) as node:
        await_true(paths["failed"].exists, 60)
        key = master.want(launch("spared", "stay"))
        master.joined(key)
        paths["mended"].touch()
        await_true(paths["evicted"].exists)
        assert node.poll() is None
        assert not master.reports[key].state.ended


HANGING_FOLDER = """
import threading
from rolecall.node import self_check
def hang(data):
    open({started!r}, "w").close()  # A FIFO: its reader waits for this.
    threading.Event().wait()
self_check._check_disk = hang
"""


def test_a_data_folder_that_hangs_does_not_delay_the_exit(tmp_path: Path) -> None:
    """Like a network file system whose server is unavailable."""
    master, started = ScriptedMaster(), tmp_path / "started"
    os.mkfifo(started)
    prelude = HANGING_FOLDER.format(started=str(started))
    with master.serving(), running_node(master, tmp_path / "data", prelude=prelude) as node:
        started.read_text()
        node.send_signal(signal.SIGTERM)
        assert node.wait(5) == 0
        assert [name for name, _ in master.left] == ["n"]


def _leaves(node: subprocess.Popen[str], master: ScriptedMaster) -> None:
    """A node without workers leaves at once."""
    for key in list(master.desired):
        master.drop(key)
    master.wait(lambda: not master.reports)
    node.send_signal(signal.SIGTERM)
    assert node.wait(10) == 0, "the grace time is longer"
    assert [name for name, _ in master.left] == ["n"]
