# pyright: standard
"""Coordinates in the grid and the sum of gradients, by a group of one process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from rolecall.kit import grid
from rolecall.kit.grid import make_grid
from rolecall.runtime.backends import COLLECTIVE_TIMEOUT

CPU = torch.device("cpu")


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=(tmp_path / "store").as_uri(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_one_process_is_the_first_in_every_dimension() -> None:
    made = make_grid(1, CPU)
    assert (made.replica, made.replicas, made.rank, made.ranks) == (0, 1, 0, 1)
    for group in (made.pipeline_group, made.replica_group):
        assert group._get_backend(CPU).options._timeout == COLLECTIVE_TIMEOUT, "torch's is 30 minutes"
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.tensor([1.0, 2.0])
    made.all_reduce_gradients([weight])
    assert weight.grad.tolist() == [1.0, 2.0]


def test_buckets_have_a_minimum_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "_BUCKET_SIZE", 4)
    tensors = [torch.zeros(size) for size in (3, 1, 5, 2, 1)]
    assert [[len(one) for one in bucket] for bucket in grid._buckets(tensors)] == [[3, 1], [5], [2, 1]]
