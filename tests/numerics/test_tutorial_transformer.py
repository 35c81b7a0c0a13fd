# pyright: standard
"""The tutorial's model with the tutorial's sizes, in two stages and in one process."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from tests.numerics.transformer_pipeline_reference import whole_model
from torch import Tensor

from rolecall.kit.grid import make_grid
from rolecall.kit.worker import WorkerContext
from rolecall.spec.role import Role
from rolecall.spec.workload import RoleCount, Workload
from rolecall.testing import run_gang
from rolecall.workloads.transformer_pipeline.params import Params, SplitMethod
from rolecall.workloads.transformer_pipeline.remote import Pipeline

TUTORIALS = Path(__file__).parents[2] / "examples" / "tutorials"
VOCABULARY = 10_000
GRADIENTS = "gradients.pt"
MODEL = {
    "builds": "model",
    "builder": "tutorial_transformer:transformer",
    # Without dropout, whose values would differ with the number of processes. The rest are the tutorial's sizes.
    "arguments": {"dropout": 0.0},
}
PARAMS: dict[str, Any] = {
    "text": {"train": "unread"},
    "context": 500,
    "batch_size": 32,
    "model": MODEL,
    "cuts": ["layers.4"],
    "schedule": "GPipe",
    "micro_batches": 4,
}
WORKLOAD = Workload(
    name="tutorial-sizes",
    summary="A batch of the tutorial's model",
    package="tests.numerics",
    module="test_tutorial_transformer",
    params=Params,
    roles={Role.STAGE: RoleCount(default=2)},
    rpc=False,
    process_group=(Role.STAGE,),
)


def batch() -> tuple[Tensor, Tensor]:
    """Random tokens and targets."""
    tokens, targets = torch.randint(VOCABULARY, (2, 32, 500), generator=torch.Generator().manual_seed(0))
    return tokens, targets


def run(context: WorkerContext[Params]) -> None:
    """Step 1 trains the model that is cut by hand, and leaves the gradients. Step 2 is traced, without gradients, and
    takes the first micro-batch alone, because all of them take four times as long."""
    grid = make_grid(1, context.device)
    pipeline = Pipeline(context.params, VOCABULARY, grid)
    loss = pipeline.step(*batch()).sum()
    dist.all_reduce(loss)
    torch.save({name: weight.grad for name, weight in pipeline.named_parameters()}, context.workdir.scratch / GRADIENTS)
    context.report(1, loss=loss)
    traced: SplitMethod = "tracer"
    first = {"split": traced, "batch_size": 8, "micro_batches": 1}
    context.report(2, loss=forward_loss(Pipeline(context.params.model_copy(update=first), VOCABULARY, grid)))


@torch.no_grad()
def forward_loss(pipeline: Pipeline) -> Tensor:
    """The loss of the first micro-batch by torch's schedule. The backward pass takes most of the time and memory."""
    tokens, targets = (part[:8] for part in batch())
    losses: list[Tensor] = []
    inputs = (tokens,) if 0 in pipeline.model_parts else ()
    wanted = {"target": targets, "losses": losses} if 1 in pipeline.model_parts else {}
    pipeline._schedule.eval(*inputs, **wanted)
    loss = sum(losses, start=torch.zeros(()))
    dist.all_reduce(loss)
    return loss


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_the_tutorials_sizes_give_the_loss_and_gradients_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To 1e-5 in float32. Attention is over the samples of a micro-batch, so one process takes micro-batches, too."""
    monkeypatch.setenv("ROLECALL_PLUGINS", str(TUTORIALS))
    monkeypatch.syspath_prepend(str(TUTORIALS))
    model = whole_model(Params.model_validate(PARAMS), VOCABULARY)
    assert sum(weight.numel() for weight in model.parameters()) == 43_883_280
    alone: list[float] = []
    for given, wanted in zip(*(part.chunk(4) for part in batch()), strict=True):
        loss = F.cross_entropy(model(given).flatten(0, 1), wanted.flatten())
        (loss / 4).backward()
        alone.append(loss.item())
    losses = run_gang(WORKLOAD, PARAMS, {Role.STAGE: 2}, tmp_path, timeout_s=400).losses["stage-0"]
    assert losses == pytest.approx([sum(alone) / 4, alone[0]], rel=0, abs=1e-5)
    gradients = {name: grad for file in tmp_path.rglob(GRADIENTS) for name, grad in torch.load(file).items()}
    assert gradients.keys() == {name for name, _ in model.named_parameters()}
    for name, weight in model.named_parameters():
        assert weight.grad is not None
        difference = (gradients[name] - weight.grad).norm() / weight.grad.norm()
        assert difference < 1e-5, f"{name}: {difference}"
