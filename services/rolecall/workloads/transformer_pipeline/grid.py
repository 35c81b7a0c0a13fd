"""Where a worker stands: which rank of which replica of the pipeline, and the groups that it talks in."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

_BUCKET = 4 * 2**20
"""How many numbers travel in one message."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A worker's place in the mesh of replicas × pipeline ranks; neighbouring ranks of the gang are one pipeline."""

    replica: int
    replicas: int
    rank: int
    ranks: int
    """Pipeline ranks of a replica."""
    pipeline: dist.ProcessGroup
    """The ranks of this replica."""
    peers: dist.ProcessGroup
    """The workers with this rank in all replicas."""
    device: torch.device

    def add_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Make every gradient the sum over the replicas, bucket by bucket."""
        if self.replicas == 1:
            return
        for bucket in _buckets([parameter.grad for parameter in parameters if parameter.grad is not None]):
            flat = torch.cat([gradient.flatten() for gradient in bucket])
            dist.all_reduce(flat, group=self.peers)
            for gradient, summed in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
                gradient.copy_(summed.view_as(gradient))


def arrange(replicas: int, device: torch.device) -> Grid:
    """The place of this process in the default process group, whose ranks are all stages."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.init()  # or the mesh would choose a device by itself
    shape = (replicas, dist.get_world_size() // replicas)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replica", "stage"))
    return Grid(
        replica=mesh.get_local_rank("replica"),
        replicas=shape[0],
        rank=mesh.get_local_rank("stage"),
        ranks=shape[1],
        pipeline=mesh.get_group("stage"),
        peers=mesh.get_group("replica"),
        device=device,
    )


def _buckets(tensors: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """The tensors in their order, together while they are small."""
    bucket: list[torch.Tensor] = []
    size = 0
    for tensor in tensors:
        bucket.append(tensor)
        size += tensor.numel()
        if size >= _BUCKET:
            yield bucket
            bucket, size = [], 0
    if bucket:
        yield bucket
