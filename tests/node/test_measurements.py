# pyright: standard
"""The node reads no more of its workers' measurements and GPUs than is declared, whatever they write."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.clock import ManualClock
from tests.node.harness import launch
from tests.node.simulated_driver import GPU_IS_LOST, SimulatedDriver, SimulatedGpu

from rolecall.node import worker_process
from rolecall.node.gpu_readings import GpuReading, GpuReadings
from rolecall.node.worker_process import WorkerProcess
from rolecall.spec import metric
from rolecall.spec.metric import WORKER_METRICS

STEPS, CALLS = metric.STEPS.name, metric.RPC_CALLS.name
MIB = 1 << 20


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[WorkerProcess]:
    """A worker with a folder, and without a process."""
    worker = WorkerProcess(launch("a", "stay"), tmp_path, 60.0, 1000, lambda: None)
    worker.make_folder()
    yield worker
    worker.shipped()
    worker.forget()


def found(worker: WorkerProcess) -> dict[str, dict[str, float]]:
    """The metrics that have values."""
    return {name: values for name, values in worker.measurements().items() if values}


def test_declared_values_are_read_and_others_are_not(worker: WorkerProcess) -> None:
    assert found(worker) == {}
    written = {STEPS: {"": 3}, CALLS: {"trainer": 2.5, "intruder": 1, "": 1}, "invented_total": {"": 1}}
    worker.workdir.measurements.write_text(json.dumps(written))
    assert found(worker) == {STEPS: {"": 3.0}, CALLS: {"trainer": 2.5}}


@pytest.mark.parametrize(
    "values",
    ['{"": NaN}', '{"": Infinity}', '{"": 1e999}', f'{{"": 1{"0" * 400}}}', '{"": "3"}', '{"": null}', "[3]", "3"],
)
def test_values_that_are_no_finite_numbers_are_left_out(worker: WorkerProcess, values: str) -> None:
    worker.workdir.measurements.write_text(f'{{"{STEPS}": {values}, "{CALLS}": {{"trainer": 1}}}}')
    assert found(worker) == {CALLS: {"trainer": 1.0}}


@pytest.mark.parametrize(
    "written",
    [
        b"{",
        b"\xff\xfe",
        b"[]",
        b"[" * 50_000,
        b"9" * 5000,
        b'{"steps_total": {"": 9}, "x": "' + b"x" * worker_process._MEASUREMENT_BYTES + b'"}',
    ],
    ids=["cut", "no text", "a list", "deep", "digits", "long"],
)
def test_a_file_that_cant_be_read_leaves_the_last_values(worker: WorkerProcess, written: bytes) -> None:
    worker.workdir.measurements.write_text(json.dumps({STEPS: {"": 3}}))
    before = found(worker)
    worker.workdir.measurements.write_bytes(written)
    assert found(worker) == before


def test_a_link_or_a_pipe_instead_of_the_file_is_not_followed(worker: WorkerProcess, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text(json.dumps({STEPS: {"": 9}}))
    worker.workdir.measurements.symlink_to(tmp_path / "elsewhere")
    assert found(worker) == {}
    worker.workdir.measurements.unlink()
    os.mkfifo(worker.workdir.measurements)
    assert found(worker) == {}


def test_all_that_a_worker_measures_fits(worker: WorkerProcess) -> None:
    everything = {one.name: dict.fromkeys(one.values, 1e300 / 3) for one in WORKER_METRICS}
    worker.workdir.measurements.write_text(json.dumps(everything))
    assert found(worker) == everything
    assert worker.workdir.measurements.stat().st_size < worker_process._MEASUREMENT_BYTES / 2


WHOLE = GpuReading("GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9b0", 0.37, 1024 * MIB, 40536 * MIB)
GPU = SimulatedGpu(WHOLE.uuid, use=37, used_bytes=WHOLE.used_bytes, total_bytes=WHOLE.total_bytes)
ANOTHER = SimulatedGpu("GPU-6b62ae9c")


def test_the_driver_is_asked_again_after_a_while(driver: SimulatedDriver) -> None:
    clock = ManualClock()
    readings = GpuReadings([WHOLE.uuid], clock)
    driver.has(GPU, ANOTHER)
    assert readings.read() == [WHOLE], "GPUs of other containers are none of this node's"
    driver.has(ANOTHER)
    clock.sleep(4)
    assert readings.read() == [WHOLE]
    clock.sleep(2)
    assert readings.read() == []


def test_a_failure_of_the_driver_is_logged_once(driver: SimulatedDriver, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    readings = GpuReadings([WHOLE.uuid], clock)
    lost = SimulatedGpu("GPU-6b62ae9c", memory_error=GPU_IS_LOST)
    for gpu, known, logged in (
        (ANOTHER, [WHOLE], 0),
        (lost, [], 1),
        (lost, [], 1),
        (ANOTHER, [WHOLE], 1),
        (lost, [], 2),
    ):
        driver.has(GPU, gpu)
        assert readings.read() == known
        assert caplog.text.count("GPU 1: GPU is lost") == logged
        clock.sleep(6)


def test_the_driver_is_not_asked_on_a_node_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("it starts a process"))
    assert GpuReadings([]).read() == []
