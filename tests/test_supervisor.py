"""Start, restart and shutdown of the programs that a supervisor runs."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from tests.clock import ManualClock

from rolecall import process
from rolecall.process import describe_exit
from rolecall.supervisor import Ended, SupervisedProgram, Supervisor, restart_delay_s

TELLS_WHEN_ASKED = """
import signal, sys
name, ready, asked = sys.argv[1:]
def leave(*_):
    with open(asked, "a") as file:
        file.write(name + "\\n")
    {then}
signal.signal(signal.SIGTERM, leave)
open(ready, "w").write("up")  # a FIFO: its reader waits for this
while True:
    signal.pause()
"""
TWO = """
import json, sys
from rolecall.supervisor import SupervisedProgram, Supervisor
with Supervisor([SupervisedProgram("", json.loads(command), {}) for command in sys.argv[1:]]) as supervisor:
    while not supervisor.should_exit:
        supervisor.wait()
"""
STUBBORN = """
import sys
from rolecall.supervisor import SupervisedProgram, Supervisor
with Supervisor([SupervisedProgram("stubborn", sys.argv[1:], {})]) as supervisor:
    while not supervisor.should_exit:
        supervisor.wait()
"""


def command(name: str, folder: Path, then: str = "sys.exit()") -> tuple[str, ...]:
    """A program that reports its start, and each SIGTERM that it gets."""
    os.mkfifo(folder / name)
    source = TELLS_WHEN_ASKED.format(then=then)
    return (sys.executable, "-c", source, name, str(folder / name), str(folder / "asked"))


def await_up(*names: str, folder: Path) -> None:
    assert [(folder / name).read_text() for name in names] == ["up"] * len(names)


def child_of_this_test() -> psutil.Process:
    """The most recently started program. Other children are servers shared by the test session."""
    return max(psutil.Process().children(), key=psutil.Process.create_time)


def next_end(supervisor: Supervisor) -> Ended:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        for ended in supervisor.wait(1.0):
            return ended
    pytest.fail("no program ended")


def test_the_delay_before_a_restart_doubles_and_is_bounded() -> None:
    delays = [restart_delay_s(failures) for failures in range(12)]
    assert delays[:4] == [0.25, 0.5, 1.0, 2.0]
    assert delays == sorted(delays)
    assert delays[-1] == restart_delay_s(5000) == 30.0


def test_exit_codes_and_signals_are_described() -> None:
    assert describe_exit(3) == "exit code 3"
    assert describe_exit(-signal.SIGKILL) == "SIGKILL"
    assert describe_exit(-(signal.SIGRTMIN + 1)) == "signal 35"


@pytest.mark.slow
@pytest.mark.parametrize(("ran_s", "delay_s"), [(60.0, restart_delay_s(1)), (61.0, restart_delay_s(0))])
def test_a_program_that_ends_is_reported_and_started_again_sooner_if_it_ran_long(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ran_s: float, delay_s: float
) -> None:
    def restarts() -> int:
        return sum("short restarted" in message for message in caplog.messages)

    log, clock = tmp_path / "log", ManualClock()
    program = SupervisedProgram("short", ("sh", "-c", "echo run; exit 3"), os.environ, log)
    with Supervisor([program], clock=clock) as supervisor:
        clock.sleep(ran_s)
        assert next_end(supervisor) == Ended(program, 3)
        clock.sleep(delay_s / 2)
        assert (supervisor.wait(0), restarts()) == ([], 0)
        clock.sleep(delay_s / 2)
        assert (supervisor.wait(0), restarts()) == ([], 1)
        assert next_end(supervisor) == Ended(program, 3)
    assert log.read_text() == "run\nrun\n"


@pytest.mark.slow
def test_programs_end_independently(tmp_path: Path) -> None:
    steady = SupervisedProgram("steady", command("steady", tmp_path), os.environ)
    with Supervisor([steady, SupervisedProgram("short", ("sh", "-c", "kill -9 $$"), os.environ)]) as supervisor:
        await_up("steady", folder=tmp_path)
        ended = next_end(supervisor)
    assert (ended.program.name, ended.code) == ("short", -signal.SIGKILL)
    assert (tmp_path / "asked").read_text() == "steady\n"


def test_the_first_program_is_stopped_last(tmp_path: Path) -> None:
    names = ("first", "second", "third")
    with Supervisor([SupervisedProgram(name, command(name, tmp_path), os.environ) for name in names]):
        await_up(*names, folder=tmp_path)
    asked = (tmp_path / "asked").read_text().split()
    assert sorted(asked) == sorted(names)
    assert asked[-1] == "first"


@pytest.mark.slow
@pytest.mark.timeout(15)
def test_another_thread_that_takes_the_signal_of_an_exit_delays_nothing_for_long(tmp_path: Path) -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        with Supervisor([SupervisedProgram("quick", command("quick", tmp_path), os.environ)]) as supervisor:
            await_up("quick", folder=tmp_path)
            child = child_of_this_test()
            child.terminate()
            deadline = time.monotonic() + 10
            while child.status() != psutil.STATUS_ZOMBIE:  # From now on no signal comes.
                assert time.monotonic() < deadline
                time.sleep(0.01)
            while not (ended := supervisor.wait()):
                pass
            assert [one.code for one in ended] == [0]
    finally:
        over.set()
        thread.join()


@pytest.mark.slow
def test_a_program_that_does_not_end_within_the_grace_time_is_killed(tmp_path: Path) -> None:
    program = SupervisedProgram("stubborn", command("stubborn", tmp_path, then="pass"), os.environ)
    with Supervisor([program], grace_s=2.0):
        await_up("stubborn", folder=tmp_path)
        child = child_of_this_test()
        assert child.cmdline() == list(program.command)
    assert (tmp_path / "asked").read_text() == "stubborn\n"
    assert not child.is_running()


def test_a_program_that_can_not_start_stops_those_before_it(tmp_path: Path) -> None:
    programs = [
        SupervisedProgram("first", ("sleep", "60"), os.environ),
        SupervisedProgram("second", ("/nowhere",), os.environ),
    ]
    children = set(psutil.Process().children())
    with pytest.raises(FileNotFoundError), Supervisor(programs):
        pytest.fail("it must not be entered")
    assert set(psutil.Process().children()) <= children


def test_a_second_signal_kills_immediately(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "second")
    stubborn = command("stubborn", tmp_path, then=f"open({str(tmp_path / 'second')!r}, 'w').write('asked')")
    with subprocess.Popen([sys.executable, "-c", STUBBORN, *stubborn]) as process:
        await_up("stubborn", folder=tmp_path)
        (child,) = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGTERM)
        assert (tmp_path / "second").read_text() == "asked"
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    assert not child.is_running()


def test_a_second_signal_also_ends_programs_that_got_no_signal_yet(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "second")
    then = f"open({str(tmp_path / 'second')!r}, 'w').write('asked')"
    first, later = command("first", tmp_path, then="pass"), command("later", tmp_path, then=then)
    given = [sys.executable, "-c", TWO, *map(json.dumps, (first, later))]
    with subprocess.Popen(given) as process:
        await_up("first", "later", folder=tmp_path)
        children = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGTERM)
        assert (tmp_path / "second").read_text() == "asked"
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(10) == 0
        finally:
            process.kill()
    assert not psutil.wait_procs(children, timeout=5)[1]


@pytest.mark.slow
def test_programs_die_with_a_killed_supervisor(tmp_path: Path) -> None:
    stubborn = command("stubborn", tmp_path, then="pass")
    with subprocess.Popen([sys.executable, "-c", STUBBORN, *stubborn]) as process:
        await_up("stubborn", folder=tmp_path)
        children = psutil.Process(process.pid).children()
        process.kill()
    assert not psutil.wait_procs(children, timeout=5)[1]


@pytest.mark.slow
def test_a_program_that_would_outlive_its_supervisor_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_PR_SET_PDEATHSIG", 1 << 20)  # no such option, so that the call fails
    program = SupervisedProgram("free", ("touch", str(tmp_path / "ran")), os.environ, log=tmp_path / "log")
    with Supervisor([program]) as running:
        (ended,) = running.wait(10)
    assert ended.code == os.EX_OSERR
    assert (
        tmp_path / "log"
    ).read_text() == "free would outlive its supervisor: prctl(PR_SET_PDEATHSIG): Invalid argument\n"
    assert not (tmp_path / "ran").exists()
