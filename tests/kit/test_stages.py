# pyright: standard
"""Torch's stages and schedules compute what the whole model does, by a rank with all stages."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import SplitPoint, pipe_split

from rolecall.kit.csv_schedules import parse_schedule
from rolecall.kit.grid import Grid, make_grid
from rolecall.kit.stages import compute_tasks, manual_stages, own_runtime, skip_p2p_with_self, traced_stages
from rolecall.spec.errors import InputError

MICRO_BATCH, CLASSES = (2, 3), 5
TOKENS = torch.arange(12).view(4, 3) % CLASSES
OWN = "0F0,1F0,0F1,1F1,1B0,0B0,1I1,0B1,1W1"


@pytest.fixture
def grid(tmp_path: Path) -> Iterator[Grid]:
    dist.init_process_group("gloo", init_method=(tmp_path / "store").as_uri(), rank=0, world_size=1)
    yield make_grid(1, torch.device("cpu"))
    dist.destroy_process_group()


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(CLASSES, 4), nn.Linear(4, 4), nn.Linear(4, CLASSES))


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


def stages_of(split: str, whole: nn.Sequential, grid: Grid) -> list[Any]:
    if split == "manual":
        return manual_stages({0: whole[:2], 1: whole[2:]}, [4, CLASSES], MICRO_BATCH, grid)
    stages, widths = traced_stages(whole, {"2": SplitPoint.BEGINNING}, [0, 1], MICRO_BATCH, grid, count=2)
    assert widths == [4, CLASSES]
    return stages


# Torch warns of the group of one rank.
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("split", ["manual", "tracer"])
def test_a_users_schedule_gives_the_gradients_of_the_whole_model(split: str, grid: Grid) -> None:
    whole, own = model(), parse_schedule([OWN])
    expected = model()
    loss(expected(TOKENS), TOKENS).backward()
    stages = stages_of(split, whole, grid)
    for stage in stages:
        skip_p2p_with_self(stage, 0)
    runtime = own_runtime(own, stages, loss)
    losses: list[Tensor] = []
    runtime.step(TOKENS, target=TOKENS, losses=losses, return_outputs=False)
    torch.testing.assert_close(torch.stack(losses).sum(), loss(expected(TOKENS), TOKENS))
    assert tuple(compute_tasks(runtime.pipeline_order[0])) == own.order[0]
    found = [parameter.grad for stage in stages for parameter in stage.submod.parameters()]
    torch.testing.assert_close(found, [parameter.grad for parameter in expected.parameters()])


def test_calls_of_pipe_split_divide_a_trace(grid: Grid) -> None:
    class Marked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.last = model()

        def forward(self, tokens: Tensor) -> Tensor:
            vectors = self.second(self.first(tokens))
            pipe_split()
            return self.last(vectors)

    whole = Marked()
    stages, widths = traced_stages(whole, {}, [0, 1], MICRO_BATCH, grid, count=2)
    assert widths == [4, CLASSES]
    names = [[name for name, _ in stage.submod.named_parameters()] for stage in stages]
    assert names == [["first.weight", "second.weight", "second.bias"], ["last.weight", "last.bias"]]
    x: Tensor = TOKENS[:2]
    for stage in stages:
        x = stage.submod(x)
    assert torch.equal(x, model()(TOKENS[:2]))
    with pytest.raises(InputError, match=r"1 time for 3 virtual stages; it needs 2"):
        traced_stages(whole, {}, [0, 1], MICRO_BATCH, grid, count=3)
    with pytest.raises(InputError, match="of its own; remove them, or set cuts: pipe_split"):
        traced_stages(whole, {"second": SplitPoint.BEGINNING}, [0, 1], MICRO_BATCH, grid, count=2)


def test_a_traced_cut_has_one_tensor(grid: Grid) -> None:
    class Skipping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.last = model()

        def forward(self, tokens: Tensor) -> Tensor:
            vectors = self.first(tokens)
            return self.last(self.second(vectors) + vectors)

    with pytest.raises(InputError, match="skip connections across a cut"):
        traced_stages(Skipping(), {"second": SplitPoint.END}, [0, 1], MICRO_BATCH, grid, count=2)


def test_traced_stages_receive_contiguous_tensors_also_where_the_trace_has_others(grid: Grid) -> None:
    """Torch sends no others. The trace has a view of the transposed tensor that a contiguous one doesn't allow."""

    class Transposing(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            rows = x.transpose(0, 1).contiguous()
            return self.inner(rows.view(6, 4)).view(3, 2, -1).transpose(0, 1)

    whole = nn.Sequential(*(child if index == 0 else Transposing(child) for index, child in enumerate(model())))
    stages, _ = traced_stages(whole, {"2": SplitPoint.BEGINNING}, [0, 1], MICRO_BATCH, grid, count=2)
    kinds = [node.meta["val"] for stage in stages for node in stage.submod.graph.nodes if node.op == "placeholder"]
    assert [kind.is_contiguous() for kind in kinds] == [True, True]
    sent = stages[0].submod(TOKENS[:2]).contiguous()
    assert torch.equal(stages[1].submod(sent), model()(TOKENS[:2]))
