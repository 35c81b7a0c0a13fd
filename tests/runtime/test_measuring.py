# pyright: standard
"""The measurements of a worker about itself."""

import json
from pathlib import Path

import pytest
import torch
from tests.clock import ManualClock

from rolecall.runtime import measuring
from rolecall.runtime.measuring import Measurements, publish
from rolecall.runtime.remote import tensor_bytes
from rolecall.runtime.timeline import Timeline
from rolecall.spec import metric
from rolecall.spec.timeline import ACTIVITIES


def test_published_times_never_decrease() -> None:
    """A pipeline moves time from compute to waiting after the step, when a scrape may have seen it as compute."""
    measured, clock = Measurements(), ManualClock()
    timeline = Timeline(clock)
    with timeline.step(1):
        clock.sleep(10)
        assert measured.values(timeline)[metric.TIME.name]["compute"] == 10
        timeline.record("wait", "wait", 6, 10)
    found = measured.values(timeline)
    assert (found[metric.TIME.name]["compute"], found[metric.TIME.name]["wait"]) == (10, 4)
    assert found[metric.STEPS.name] == {"": 1}


def test_the_seconds_of_a_body_are_added() -> None:
    clock = ManualClock()
    measured = Measurements(clock)
    for seconds in (1, 2):
        with measured.timed(metric.UPDATE_SECONDS):
            clock.sleep(seconds)
    assert measured.values(Timeline())[metric.UPDATE_SECONDS.name] == {"": 3}


def test_a_file_has_the_newest_values_alone(tmp_path: Path) -> None:
    measured = Measurements()
    path = tmp_path / "measurements"
    path.write_text("x" * 10_000)
    measured.add(metric.RPC_CALLS, 2, "trainer")
    measured.add(metric.RPC_CALLS, 1, "trainer")
    measured.set(metric.TABLE_BYTES, 5)
    with pytest.MonkeyPatch.context() as patch, path.open("r+b") as file:
        patch.setattr(measuring, "measurements", measured)
        publish(file.fileno(), Timeline())
    found = json.loads(path.read_text())
    assert found.pop(metric.TIME.name).keys() == set(ACTIVITIES)
    assert found == {metric.RPC_CALLS.name: {"trainer": 3}, metric.TABLE_BYTES.name: {"": 5}}


def test_the_tensors_of_a_call_are_counted_wherever_they_are() -> None:
    tensor = torch.zeros(2, 3)
    assert tensor_bytes((tensor, [tensor, {"a": tensor}], "text", None, 3)) == 72
    assert tensor_bytes(torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1), (2,))) == 0
