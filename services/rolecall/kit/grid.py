"""A worker's pipeline rank and replica, and its process groups."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist

from rolecall.runtime.backends import COLLECTIVE_TIMEOUT

_BUCKET_SIZE = 4 * 2**20
"""Elements in one all-reduce."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A worker's coordinates in the grid of replicas × pipeline ranks; consecutive ranks form one pipeline."""

    replica: int
    replicas: int
    rank: int
    ranks: int
    """Pipeline ranks in a replica."""
    pipeline_group: dist.ProcessGroup
    """The ranks of this replica."""
    replica_group: dist.ProcessGroup
    """The workers with this rank in all replicas."""
    device: torch.device

    def all_reduce_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Sum every gradient over the replicas, in buckets."""
        if self.replicas == 1:
            return
        for bucket in _buckets([parameter.grad for parameter in parameters if parameter.grad is not None]):
            flat = torch.cat([gradient.flatten() for gradient in bucket])
            dist.all_reduce(flat, group=self.replica_group)
            for gradient, summed in zip(bucket, torch.split(flat, [g.numel() for g in bucket]), strict=True):
                gradient.copy_(summed.view_as(gradient))


def make_grid(replicas: int, device: torch.device) -> Grid:
    """The grid of this process; the default process group must have all stages and no other workers."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    world = dist.get_world_size()
    ranks = world // replicas
    replica, rank = divmod(dist.get_rank(), ranks)
    return Grid(
        replica=replica,
        replicas=replicas,
        rank=rank,
        ranks=ranks,
        pipeline_group=own_group([range(start, start + ranks) for start in range(0, world, ranks)]),
        replica_group=own_group([range(index, world, ranks) for index in range(ranks)]),
        device=device,
    )


def own_group(groups: Sequence[Sequence[int]]) -> dist.ProcessGroup:
    """The process group of this rank, with the gang's time limit, because torch's is 10 or 30 minutes.

    All ranks must call it with the same `groups`, which must contain each rank once.
    """
    members = [list(group) for group in groups]
    group, _ = dist.new_subgroups_by_enumeration(members, timeout=COLLECTIVE_TIMEOUT)
    return cast(dist.ProcessGroup, group)  # torch returns none only to other ranks


def _buckets(tensors: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Consecutive tensors in buckets of at least `_BUCKET_SIZE` elements; the last may be smaller."""
    bucket: list[torch.Tensor] = []
    size = 0
    for tensor in tensors:
        bucket.append(tensor)
        size += tensor.numel()
        if size >= _BUCKET_SIZE:
            yield bucket
            bucket, size = [], 0
    if bucket:
        yield bucket
