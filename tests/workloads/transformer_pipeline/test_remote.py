"""One rank's part of a pipeline. tests/numerics compares whole gangs with one process."""

import importlib
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.measured import measured

from rolecall.kit.grid import make_grid
from rolecall.spec.metric import IN_FLIGHT
from rolecall.workloads.transformer_pipeline.params import Params
from rolecall.workloads.transformer_pipeline.remote import Pipeline

_TRANSPOSING = """
from torch import nn

class Transposing(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.mix = nn.Linear(dim, dim)

    def forward(self, x):
        x = x.transpose(0, 1).contiguous()
        return self.mix(x.cumsum(0)).transpose(0, 1)

def transposing(dim, context):
    return Transposing(dim)
"""


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


@pytest.mark.parametrize("split", ["manual", "tracer"])
def test_stages_of_transposing_layers_exchange_contiguous_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: str
) -> None:
    """Torch can send no others; of one sequence, all would be contiguous."""
    (tmp_path / "their_transposing.py").write_text(_TRANSPOSING)
    monkeypatch.setenv("ROLECALL_PLUGINS", str(tmp_path))
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "their_transposing", raising=False)
    importlib.invalidate_caches()
    given = {"layers": 2, "dim": 8, "context": 6, "batch_size": 8, "micro_batches": 4, "schedule": "LoopedBFS"}
    model = {"builder": "their_transposing:transposing"}
    params = Params.model_validate({"text": {"train": "unread"}, "model": model, "split": split, **given})
    dist.init_process_group("gloo", init_method=(tmp_path / "store").as_uri(), rank=0, world_size=1)
    try:
        parts = Pipeline(params, 11, make_grid(1, torch.device("cpu"))).model_parts
    finally:
        dist.destroy_process_group()
    sent = parts[0](torch.zeros(2, 6, dtype=torch.int64))
    received = sent.detach().requires_grad_()
    gradients = torch.autograd.grad(parts[1](received).sum(), [received])
    assert (sent.is_contiguous(), gradients[0].is_contiguous()) == (True, True)
