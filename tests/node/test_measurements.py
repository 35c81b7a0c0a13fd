"""What the node reads of its workers' measurements and GPUs: never more than is declared, whatever they write."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.clock import ManualClock
from tests.node.harness import launch

from rolecall.node import worker_process
from rolecall.node.gpu_readings import GpuReading, GpuReadings, parse
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


# In the form of `nvidia-smi --query-gpu=uuid,utilization.gpu,memory.used,memory.total --format=csv,noheader,nounits`:
# a busy GPU, one that is divided into slices, and one whose memory the driver doesn't know.
TABLE = """GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9b0, 37, 1024, 40536
GPU-6b62ae9c-1f1c-4ed9-8bd5-6fc0b22a4c56, [N/A], 12, 40536
GPU-11111111-1f1c-4ed9-8bd5-6fc0b22a4c56, 0, [N/A], [N/A]

"""
WHOLE = GpuReading("GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9b0", 0.37, 1024 * MIB, 40536 * MIB)
DIVIDED = GpuReading("GPU-6b62ae9c-1f1c-4ed9-8bd5-6fc0b22a4c56", None, 12 * MIB, 40536 * MIB)


def test_the_drivers_table_is_read() -> None:
    assert list(parse(TABLE)) == [WHOLE, DIVIDED]


def test_the_driver_is_asked_again_after_a_while_and_may_fail(tmp_path: Path) -> None:
    program, clock = tmp_path / "nvidia-smi", ManualClock()
    (tmp_path / "table").write_text(TABLE)
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/table\n")
    program.chmod(0o755)
    readings = GpuReadings([WHOLE.uuid], str(program), clock)
    assert readings.read() == [WHOLE], "GPUs of other containers are none of this node's"
    (tmp_path / "table").unlink()
    clock.sleep(4)
    assert readings.read() == [WHOLE]
    clock.sleep(2)
    assert readings.read() == []
    assert GpuReadings([], "no such program").read() == []
