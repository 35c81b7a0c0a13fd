"""What a worker records about itself."""

import json
import threading
from pathlib import Path

import pytest
import torch
from tests.clock import ManualClock

from rolecall.runtime import measuring
from rolecall.runtime.measuring import Measurements, Phases, measured_step, publish
from rolecall.runtime.remote import tensor_bytes
from rolecall.spec import metric
from rolecall.spec.metric import Phase


def test_each_second_belongs_to_one_phase() -> None:
    clock = ManualClock()
    phases = Phases(clock)
    clock.sleep(1)
    with phases.during(Phase.COMPUTE):
        clock.sleep(2)
        with phases.during(Phase.COMMUNICATION):
            clock.sleep(4)
        clock.sleep(8)
    clock.sleep(16)
    found = phases.seconds()
    assert {phase: seconds for phase, seconds in found.items() if seconds} == {
        Phase.OTHER: 17,
        Phase.COMPUTE: 10,
        Phase.COMMUNICATION: 4,
    }
    phases.move(Phase.COMPUTE, Phase.WAIT, 3)
    moved = phases.seconds()
    assert (moved[Phase.COMPUTE], moved[Phase.WAIT], sum(moved.values())) == (7, 3, 31)


def test_an_error_ends_the_phase() -> None:
    clock = ManualClock()
    phases = Phases(clock)
    with pytest.raises(ValueError, match="broken"), phases.during(Phase.DATA):
        raise ValueError("broken")
    clock.sleep(1)
    assert phases.seconds()[Phase.OTHER] == 1


def test_other_threads_change_no_phase() -> None:
    clock = ManualClock()
    phases = Phases(clock)

    def wait() -> None:
        with phases.during(Phase.COMMUNICATION):
            clock.sleep(1)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert phases.seconds()[Phase.OTHER] == 1


def test_a_switch_during_a_reading_counts_no_time_twice() -> None:
    """The thread that publishes copies the times just after the main thread has switched."""

    class Switched(dict[Phase, float]):
        def copy(self) -> dict[Phase, float]:
            phases.switch(Phase.WAIT)
            return super().copy()

    clock = ManualClock()
    phases = Phases(clock)
    phases.switch(Phase.COMPUTE)
    clock.sleep(10)
    phases._seconds = Switched(phases._seconds)
    assert phases.seconds()[Phase.COMPUTE] == 10


def test_published_phases_never_decrease() -> None:
    """A pipeline moves time from compute to waiting after the step, when a scrape may have seen it as compute."""
    measured, clock = Measurements(), ManualClock()
    measured.phases = Phases(clock)
    with measured.phases.during(Phase.COMPUTE):
        clock.sleep(10)
    assert measured.values()[metric.PHASE_SECONDS.name][Phase.COMPUTE] == 10
    measured.phases.move(Phase.COMPUTE, Phase.WAIT, 4)
    found = measured.values()[metric.PHASE_SECONDS.name]
    assert (found[Phase.COMPUTE], found[Phase.WAIT]) == (10, 4)


def test_steps_are_counted_as_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    measured, clock = Measurements(), ManualClock()
    measured.phases = Phases(clock)
    monkeypatch.setattr(measuring, "measurements", measured)
    step = measured_step(clock.sleep)
    step(2)
    step(3)
    found = measured.values()
    assert found[metric.STEPS.name] == {"": 2}
    assert found[metric.PHASE_SECONDS.name][Phase.COMPUTE] == 5


def test_a_file_has_the_newest_values_alone(tmp_path: Path) -> None:
    measured = Measurements()
    path = tmp_path / "measurements"
    path.write_text("x" * 10_000)
    measured.add(metric.RPC_CALLS, 2, "trainer")
    measured.add(metric.RPC_CALLS, 1, "trainer")
    measured.set(metric.TABLE_BYTES, 5)
    with pytest.MonkeyPatch.context() as patch, path.open("r+b") as file:
        patch.setattr(measuring, "measurements", measured)
        publish(file.fileno())
    found = json.loads(path.read_text())
    assert found.pop(metric.PHASE_SECONDS.name).keys() == set(Phase)
    assert found == {metric.RPC_CALLS.name: {"trainer": 3}, metric.TABLE_BYTES.name: {"": 5}}


def test_the_tensors_of_a_call_are_counted_wherever_they_are() -> None:
    tensor = torch.zeros(2, 3)
    assert tensor_bytes((tensor, [tensor, {"a": tensor}], "text", None, 3)) == 72
    assert tensor_bytes(torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1), (2,))) == 0
