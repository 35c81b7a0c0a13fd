"""`make test-gpu` on a machine without a GPU: that the tests of tests/gpu run, so that only CUDA is left to fail."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.gpu import wheels

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_rehearsal_on_the_cpu_writes_its_report(tmp_path: Path) -> None:
    """Without pyarrow, which is too large for the machine with the GPU: no process of `embedding-ddp` needs it."""
    (tmp_path / "pyarrow.py").write_text("raise ModuleNotFoundError('missing', name='pyarrow')\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    report = tmp_path / "build" / "gpu.json"
    command = [
        sys.executable,
        "-m",
        "tests.gpu",
        "--device",
        "cpu",
        "--report",
        str(report),
        "-k",
        "with_a_gpu_each or share_a_gpu or (embedding and trainer)",
    ]
    command += ["--basetemp", str(tmp_path / "gangs")]
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = {one["test"].rpartition("::")[2]: one["outcome"] for one in json.loads(report.read_text())["tests"]}
    assert outcomes == {
        "test_workers_that_share_a_gpu_exchange_tensors": "passed",
        "test_workers_with_a_gpu_each_exchange_tensors": "skipped",
        "test_float64_as_on_the_cpu[embedding-ddp, trainer]": "passed",
        "test_an_exported_model_predicts_on_the_gpu[embedding-ddp, trainer]": "passed",
    }


def test_every_wheel_is_pinned_with_its_hash() -> None:
    entries = wheels.pinned(wheels.LOCK.read_text(), wheels.names())
    assert {line.split("==")[0] for line in entries.splitlines() if not line.startswith(" ")} == set(wheels.names())
    assert entries.count("--hash=sha256:") > len(wheels.names())


def test_a_package_that_no_lock_pins_is_named() -> None:
    with pytest.raises(ValueError, match=r"^nowhere: not in requirements-lowest\.lock; remove them from wheels.txt"):
        wheels.pinned("pytest==1.0 \\\n    --hash=sha256:0\n", ["pytest", "nowhere"])
