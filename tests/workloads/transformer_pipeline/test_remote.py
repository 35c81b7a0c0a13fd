"""One rank's part of a pipeline. tests/numerics compares whole gangs with one process."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.measured import measured

from rolecall.kit.grid import make_grid
from rolecall.spec.metric import IN_FLIGHT
from rolecall.workloads.transformer_pipeline.params import Params
from rolecall.workloads.transformer_pipeline.remote import Pipeline


@pytest.mark.parametrize(("schedule", "most"), [("LoopedBFS", 8), ("Interleaved1F1B", 2)])
def test_a_rank_measures_the_micro_batches_that_its_schedule_holds(tmp_path: Path, schedule: str, most: int) -> None:
    """The only rank of a pipeline has two stages, which both hold the activations of a micro-batch."""
    sizes = {"layers": 2, "dim": 8, "heads": 2, "context": 6, "batch_size": 4, "micro_batches": 4}
    params = Params.model_validate({"text": {"train": "unread"}, "schedule": schedule, **sizes})
    dist.init_process_group("gloo", init_method=(tmp_path / "store").as_uri(), rank=0, world_size=1)
    try:
        Pipeline(params, 11, make_grid(1, torch.device("cpu")))
    finally:
        dist.destroy_process_group()
    assert measured(IN_FLIGHT) == [most]
