"""Steps per second and memory of models of a useful size, for the report. Each worker has one CPU thread."""

from pathlib import Path
from typing import Any

import pytest
from tests.gpu.jobs import (
    MASTER,
    ON_GPU,
    PS,
    STAGE,
    TRAINER,
    Job,
    params_of,
    run_job,
    write_images,
    write_text,
)
from tests.gpu.test_training import NEEDS

from rolecall.testing import GangResult

WARM_UP = 2
_ROWS = {"rows": 30_000, "columns": 8, "ids": 10_000, "max_values": 4, "skew": 1.0, "numbers": 8}
_RNN = {"embedding_dim": 512, "hidden_dim": 512, "batch_size": 64, "bptt": 35, "sample": {"tokens": 0}}
_TRANSFORMER = {"context": 128, "layers": 8, "dim": 512, "heads": 8, "batch_size": 16, "micro_batches": 4}
_RESNET = {"model": "resnet50", "cuts": ["layer3.0"], "batch_size": 32, "micro_batches": 4}
JOBS_OF_SIZE = {
    "embedding-ddp": Job(
        "embedding-ddp",
        {MASTER: 1, PS: 1, TRAINER: 1},
        [PS, TRAINER],
        {"data": {"synthetic": _ROWS}, "embedding_dim": 256, "hidden": [1024, 1024], "batch_size": 1024},
    ),
    "rnn-lm": Job("rnn-lm", {PS: 1, TRAINER: 1}, [PS, TRAINER], _RNN),
    "resnet-pipeline": Job("resnet-pipeline", {MASTER: 1, STAGE: 2}, [STAGE], _RESNET),
    "transformer-pipeline": Job("transformer-pipeline", {STAGE: 2}, [STAGE], {**_TRANSFORMER, "sample": {"tokens": 0}}),
}
"""Two workers share the GPU in each."""


def steps_per_s(result: GangResult) -> float:
    """After the first steps, which also load kernels and set up connections."""
    ends = next(iter(result.step_ends.values()))[WARM_UP - 1 :]
    return (len(ends) - 1) / (ends[-1] - ends[0])


@pytest.mark.skipif(not ON_GPU, reason="a rehearsal on the CPU has nothing to compare")
@pytest.mark.parametrize("name", JOBS_OF_SIZE)
def test_speed_and_memory(name: str, tmp_path: Path, figures: dict[str, Any]) -> None:
    """A model of useful size fits, and the report gets its figures; no speed is demanded."""
    job = JOBS_OF_SIZE[name]
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], exc_type=ImportError)
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    write_text(inputs / "text.txt", lines=20_000)
    if name == "resnet-pipeline":
        write_images(inputs / "images")
    params = params_of(job, "float32", inputs) | {"checkpoint_every_steps": None, "epochs": 100}
    gpu = run_job(job, params | {"max_steps": WARM_UP + 20}, tmp_path / "gpu")
    figures["steps_per_s"] = {"gpu": steps_per_s(gpu)}
    figures["peak_gpu_memory_bytes"] = gpu.peak_gpu_memory
    cpu = run_job(job, params | {"max_steps": WARM_UP + 2}, tmp_path / "cpu", on_gpu=False)
    figures["steps_per_s"]["cpu"] = steps_per_s(cpu)
    assert all(peak > 0 for peak in gpu.peak_gpu_memory.values())
