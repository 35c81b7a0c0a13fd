"""A worker's pipeline rank and replica, and its process groups."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

_BUCKET_SIZE = 4 * 2**20
"""Elements in one all-reduce."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A worker's coordinates in the mesh replicas × pipeline ranks; consecutive ranks form one pipeline."""

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
        torch.cuda.init()  # otherwise the mesh selects a device
    shape = (replicas, dist.get_world_size() // replicas)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replica", "stage"))
    return Grid(
        replica=mesh.get_local_rank("replica"),
        replicas=shape[0],
        rank=mesh.get_local_rank("stage"),
        ranks=shape[1],
        pipeline_group=mesh.get_group("stage"),
        replica_group=mesh.get_group("replica"),
        device=device,
    )


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
