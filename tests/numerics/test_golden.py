"""Every workload's first losses are those of the day when they were verified, and it declares what it reports.

Parity tests would not notice a change that a gang and its reference make together, in the order of the data or in the
first weights. After a change that is meant, `python -m tests.numerics.test_golden` writes the new losses.

The comparison is not bit for bit, although the losses are in float64: torch draws most of the first weights in float32,
by kernels that round differently on processors with other vector instructions, and `reinforce` makes them orthogonal
with LAPACK, in float32 too. That moves its losses by about 5e-8. Those of the other workloads differ by 2e-11 at most
between processors with AVX2 or AVX-512: batch normalization of few images amplifies the rounding of sums, and elsewhere
the difference is below 1e-15. Without AVX2, other first weights move them by 2e-9, and those of `resnet-pipeline` by
several percent after four steps, so that the test fails there.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.rows import COLUMNS, write_rows

from rolecall.spec.metric import index_in
from rolecall.spec.report import ProgressLine
from rolecall.spec.role import Role
from rolecall.testing.gang import GangResult, run_gang
from rolecall.workloads import catalogue

GOLDEN = Path(__file__).with_name("golden.json")
DATA = Path(__file__).parents[2] / "examples" / "data"
TEXT = {"train": str(DATA / "austen/persuasion.txt.gz"), "validation": 0.0}
ALWAYS = {"precision": "float64", "seed": 7}
CASES: dict[str, tuple[dict[Role, int], dict[str, Any]]] = {
    "embedding-ddp": (
        {Role.MASTER: 1, Role.PARAMETER_SERVER: 2, Role.TRAINER: 2},
        {"embedding_dim": 8, "hidden": [16], "dropout": 0.1, "batch_size": 64, "max_steps": 20},
    ),
    "rnn-lm": (
        {Role.PARAMETER_SERVER: 1, Role.TRAINER: 2},
        {
            "text": {**TEXT, "vocabulary": 300},
            "embedding_dim": 8,
            "hidden_dim": 8,
            "layers": 1,
            "batch_size": 8,
            "bptt": 10,
            "max_steps": 10,
        },
    ),
    "resnet-pipeline": (
        {Role.MASTER: 1, Role.STAGE: 2},
        {
            "data": {
                "train": {
                    "images": str(DATA / "fashion-mnist/test-images.gz"),
                    "labels": str(DATA / "fashion-mnist/test-labels.gz"),
                },
                "size": 32,
                "augment": ["shift", "flip"],
                "loader_processes": 0,
            },
            "cuts": ["layer3.0"],
            "batch_size": 8,
            "micro_batches": 2,
            "max_steps": 4,
        },
    ),
    "transformer-pipeline": (
        {Role.STAGE: 2},
        {
            "text": {**TEXT, "vocabulary": 300},
            "context": 16,
            "layers": 4,
            "dim": 16,
            "heads": 2,
            "batch_size": 8,
            "micro_batches": 4,
            "max_steps": 10,
            "sample": {"tokens": 0},
        },
    ),
    "reinforce": (
        {Role.TRAINER: 1, Role.OBSERVER: 2},
        {"environment": "CartPole-v1", "environments": 4, "max_updates": 4, "evaluation": {"episodes": 2}},
    ),
}


def run(workload: str, folder: Path) -> GangResult:
    """A run of the workload's case."""
    roles, params = CASES[workload]
    if workload == "embedding-ddp":
        folder.mkdir(exist_ok=True)
        params = {**params, "data": {"train": str(write_rows(folder / "rows.csv", rows=1500)), **COLUMNS}}
    return run_gang(workload, {**params, **ALWAYS}, roles, folder / "gang")


def undeclared(workload: str, folder: Path) -> set[str]:
    """The values that the workers of a gang that ran in `folder` reported without a declaration."""
    lines = [line for path in folder.glob("work/job/1/*/progress.jsonl") for line in path.read_text().splitlines()]
    reported = {name for line in lines for name in ProgressLine.model_validate_json(line).metrics}
    assert "loss" in reported
    declared = [name for metric in catalogue.load(workload).metrics for name in metric.reported.values()]
    return {name for name in reported if all(index_in(name, one) is None for one in declared)}


@pytest.mark.slow
@pytest.mark.parametrize("workload", CASES)
def test_the_first_losses_are_the_golden_ones(workload: str, tmp_path: Path) -> None:
    expected = json.loads(GOLDEN.read_text())[workload]
    gang = run(workload, tmp_path)
    found = gang.losses
    assert found.keys() == expected.keys()
    for worker, series in expected.items():
        assert found[worker] == pytest.approx(series, rel=1e-7), worker
    assert undeclared(workload, gang.folder) == set()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        os.environ["ROLECALL_DATA_ROOTS"] = f"{made}:{DATA}"
        series = {workload: run(workload, Path(made, workload)).losses for workload in CASES}
    GOLDEN.write_text(json.dumps(series, indent=1) + "\n")
