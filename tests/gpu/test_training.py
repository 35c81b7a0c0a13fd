# pyright: standard
"""Every workload trains, saves, resumes and exports on a GPU as on the CPU.

In float64 only the order of sums differs: by about 1e-12 after six steps, so that a tolerance of 1e-9 detects a
missing wait for the GPU, which is off by far more. In float32, without TensorFloat-32, the same sums differ by 1e-7 in
each step, which six steps of these models multiply by at most a thousand. In bfloat16, with 8 bits of mantissa, losses
differ by a few hundredths from those of float32.
"""

import importlib.util
import itertools
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.gpu.jobs import (
    AGENTS,
    CHECKPOINT_STEP,
    JOBS,
    ON_GPU,
    STEPS,
    checkpoint_of,
    params_of,
    require_nvml,
    run_job,
    weights_of,
    write_images,
    write_text,
)

from rolecall.node.devices import find_gpus
from rolecall.testing import GangResult

TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 0.1}
RESNET_TOLERANCE = {"float64": 1e-8, "float32": 5e-2, "bfloat16": 0.25}
"""BatchNorm over few images multiplies differences: on the CPU, float32 and float64 differ by 0.02 at step 4."""
SHORT = ("embedding-ddp, all", "rnn-lm, all", "resnet-pipeline", "transformer-pipeline", "reinforce")
MIXED = ("rnn-lm, trainer", "resnet-pipeline", "transformer-pipeline")
NEEDS = {"resnet-pipeline": "torchvision", "reinforce": "gymnasium"}
"""Packages that a workload needs and that the machine may lack (see docs/gpu.md)."""
Cpu = Callable[[str, str], GangResult]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all gangs, with their input in `inputs`."""
    made = tmp_path_factory.mktemp("jobs")
    (made / "inputs").mkdir()
    write_text(made / "inputs" / "text.txt")
    if importlib.util.find_spec("PIL"):
        write_images(made / "inputs" / "images")
    return made


@pytest.fixture(scope="session")
def on_cpu(folder: Path) -> Cpu:
    """A job's result on the CPU, by name and precision. Jobs that differ only in where they compute share it."""
    results: dict[str, GangResult] = {}
    numbers = itertools.count()

    def run(name: str, precision: str) -> GangResult:
        job = JOBS[name]
        params = params_of(job, precision, folder / "inputs")
        key = repr((job.workload, sorted(job.roles.items()), sorted(params.items())))
        if key not in results:
            results[key] = run_job(job, params, folder / f"cpu-{next(numbers)}", on_gpu=False)
        return results[key]

    return run


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As each worker has: initial weights that take a decomposition depend on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(name: str, precision: str, folder: Path, label: str, **options: Any) -> GangResult:
    """Run a job on the GPU; skip it if its packages are missing."""
    job = JOBS[name]
    return run_job(job, params_of(job, precision, folder / "inputs"), folder / f"{label} {name} {precision}", **options)


def require_packages(name: str) -> None:
    package = NEEDS.get(JOBS[name].workload)
    if package:
        pytest.importorskip(package, reason=f"{JOBS[name].workload} needs {package}", exc_type=ImportError)


def assert_close(found: GangResult, expected: GangResult, tolerance: float, since: int = 0) -> float:
    """Compare losses and exported weights. Returns the largest difference of a loss."""
    assert found.losses.keys() == expected.losses.keys()
    largest = 0.0
    for worker, losses in found.losses.items():
        wanted = torch.tensor(expected.losses[worker][since:], dtype=torch.float64)
        given = torch.tensor(losses, dtype=torch.float64)
        torch.testing.assert_close(given, wanted, rtol=tolerance, atol=tolerance, msg=lambda m: f"losses: {m}")
        largest = max(largest, float((given - wanted).abs().max()))
    torch.testing.assert_close(weights_of(found), weights_of(expected), rtol=tolerance, atol=tolerance)
    return largest


def tolerance_of(name: str, precision: str) -> float:
    return (RESNET_TOLERANCE if JOBS[name].workload == "resnet-pipeline" else TOLERANCE)[precision]


def gpu_workers(name: str) -> int:
    job = JOBS[name]
    return sum(count for role, count in job.roles.items() if role in job.on_gpu) if ON_GPU else 0


@pytest.mark.parametrize("name", JOBS)
def test_float64_as_on_the_cpu(name: str, folder: Path, on_cpu: Cpu, figures: dict[str, Any]) -> None:
    """Losses and weights; then again from the checkpoint in the middle, for each workload also from the CPU's."""
    require_packages(name)
    expected, found = on_cpu(name, "float64"), run(name, "float64", folder, "whole")
    assert len(next(iter(found.losses.values()))) == STEPS
    assert len(found.peak_gpu_memory) == gpu_workers(name)
    figures["largest_difference_of_a_loss"] = assert_close(found, expected, tolerance_of(name, "float64"))
    figures["peak_gpu_memory_bytes"] = found.peak_gpu_memory
    if not JOBS[name].resumes:
        return
    for origin, place in ((found, "whole"), (expected, "cpu")) if name in SHORT else ((found, "whole"),):
        label = f"resumed from {place}"
        copy_checkpoint(origin, folder / f"{label} {name} float64")
        manifest = checkpoint_of(origin, CHECKPOINT_STEP)
        resumed = run(name, "float64", folder, label, resume_from=manifest)
        assert_close(resumed, expected, tolerance_of(name, "float64"), since=CHECKPOINT_STEP)


def copy_checkpoint(origin: GangResult, target: Path) -> None:
    """Copy the parts of the checkpoint into the blobs of the gang that will run in `target`."""
    for part in checkpoint_of(origin, CHECKPOINT_STEP).parts:
        copy = target / "blobs" / "job" / part.blob
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((origin.folder / "blobs" / "job" / part.blob).read_bytes())


@pytest.mark.parametrize("name", SHORT)
def test_float32_as_on_the_cpu(name: str, folder: Path, on_cpu: Cpu, figures: dict[str, Any]) -> None:
    require_packages(name)
    expected, found = on_cpu(name, "float32"), run(name, "float32", folder, "whole")
    figures["largest_difference_of_a_loss"] = assert_close(found, expected, tolerance_of(name, "float32"))


@pytest.mark.parametrize("name", MIXED)
def test_bfloat16_as_float32(name: str, folder: Path, on_cpu: Cpu, figures: dict[str, Any]) -> None:
    """Losses only: weights keep float32. The state of the LSTM shows its dtype, which torch's autocast ignores."""
    require_packages(name)
    expected, found = on_cpu(name, "float32"), run(name, "bfloat16", folder, "whole")
    assert {weight.dtype for weight in weights_of(found).values() if weight.is_floating_point()} == {torch.float32}
    difference = 0.0
    for worker, losses in found.losses.items():
        tolerance = tolerance_of(name, "bfloat16")
        assert losses == pytest.approx(expected.losses[worker], rel=tolerance, abs=tolerance)
        difference = max(abs(a - b) for a, b in zip(losses, expected.losses[worker], strict=True))
    assert difference > 0, "the losses are those of float32"
    if ON_GPU and JOBS[name].workload == "rnn-lm":
        (part,) = (part for part in checkpoint_of(found, CHECKPOINT_STEP).parts if part.name == "trainer-0")
        assert load_file(found.folder / "blobs" / "job" / part.blob)["state/0"].dtype == torch.bfloat16
    figures["largest_difference_of_a_loss"] = difference


@pytest.mark.parametrize("form", AGENTS)
def test_an_agent_on_a_gpu_selects_actions(form: str, folder: Path) -> None:
    require_packages("reinforce")
    job = AGENTS[form]
    result = run_job(job, params_of(job, "float32", folder / "inputs"), folder / f"agent {form}")
    assert len(result.losses["trainer-0"]) == STEPS
    assert len(result.peak_gpu_memory) == ON_GPU
    assert result.result["env_steps"] > 0


PREDICT = {
    "rnn-lm, trainer": "model.to(device).perplexity('w1 w2 w3 w4')",
    "transformer-pipeline": "model.to(device).perplexity('w1 w2 w3 w4')",
    "embedding-ddp, trainer": "model.to(device).predict([{'c0': 'a', 'c1': ['b', 'd'], 'n0': 1.0}])[0]",
    "resnet-pipeline": "(model.model.to(device), model.predict([Image.new('RGB', (40, 32), (9, 99, 200))])[0, 0])[1]",
    "reinforce": "model.to(device).act(np.array([0.1, 0.2, 0.3, 0.4], np.float32))",
}
"""The calls of an exported model by its user, on a device."""


@pytest.mark.parametrize("name", PREDICT)
def test_an_exported_model_predicts_on_the_gpu(name: str, folder: Path, on_cpu: Cpu, tmp_path: Path) -> None:
    """In a process that has nothing of Rolecall but the archive."""
    require_packages(name)
    with zipfile.ZipFile(on_cpu(name, "float64").artifact("model.zip")) as archive:
        archive.extractall(tmp_path)
    program = tmp_path / "predict.py"
    program.write_text(
        "import numpy as np\n"
        "from model import load\n"
        + ("from PIL import Image\n" if "Image" in PREDICT[name] else "")
        + "model = load('.')\n"
        + f"for device in ('cpu', '{'cuda' if ON_GPU else 'cpu'}'):\n    print(float({PREDICT[name]}))\n"
    )
    packages = [path for path in sys.path if path and not Path(path, "rolecall").exists()]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(packages)}
    done = subprocess.run(
        [sys.executable, program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    on_host, on_device = map(float, done.stdout.split())
    assert on_device == pytest.approx(on_host, rel=1e-6)


def test_the_node_finds_the_gpus_that_torch_sees(figures: dict[str, Any]) -> None:
    if not ON_GPU:
        pytest.skip("a rehearsal on the CPU has no GPU")
    require_nvml()
    found, inventory = find_gpus(os.environ)
    figures["gpus"] = [gpu.model_dump() for gpu in found]
    assert not inventory.failure
    properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    assert len(found) == len(properties)
    if len(found) == 1:
        assert str(properties[0].uuid) in found[0].uuid
