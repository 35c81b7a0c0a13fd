# pyright: standard
"""Embedding bags on parameter servers, which send one pooled vector per bag instead of a vector per id.

Ragged bags are flat ids [n] and offsets [b] on the CPU, as of torch's `EmbeddingBag`: bag `i` has the ids from
`offsets[i]` up to `offsets[i + 1]`, the last bag the rest.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.distributed import rpc
from torch.distributed.nn.api.remote_module import RemoteModule
from torch.futures import Future

from rolecall.kit.parameter_server.initialization import Initializer, ShardSpec, initial_rows
from rolecall.kit.parameter_server.lookup import Reply
from rolecall.kit.parameter_server.remote import ShardReference
from rolecall.kit.parameter_server.rows import bag_sizes
from rolecall.runtime.context import span

Pooling = Literal["sum", "mean"]


def require_bags(ids: Tensor, offsets: Tensor) -> None:
    """Raises `ValueError` unless ids [n] and offsets [b] describe bags that contain every id."""
    if ids.dim() != 1 or offsets.dim() != 1:
        shapes = f"{list(ids.shape)} and {list(offsets.shape)}"
        raise ValueError(f"indices and offsets have the shapes {shapes}; both must have one dimension")
    limits = torch.cat([offsets, offsets.new_tensor([len(ids)])])
    ascend = limits[1:] >= limits[:-1]
    if int(limits[0]) != 0:
        raise ValueError(f"offsets begin at {int(limits[0])}; the first bag must begin at 0, so that no index is lost")
    if not ascend.all():
        at = int(ascend.logical_not().nonzero()[0])
        here, after = int(limits[at]), int(limits[at + 1])
        what = f"the {after} indices end" if at == len(offsets) - 1 else f"offsets[{at + 1}] is {after}"
        raise ValueError(f"offsets[{at}] is {here}, but {what}; offsets must ascend, up to the number of indices")


def pool_remotely(
    ids: Tensor,
    offsets: Tensor,
    count: int,
    request: Callable[[int, Tensor, Tensor], Reply],
    pooling: Pooling = "sum",
) -> Tensor:
    """The pooled vectors [b, dim] of bags in a table of `count` shards, on the device of the shards' replies.

    `request(shard, rows, offsets)` returns a shard's pooled vectors of bags of local row numbers. Bags without any of
    its rows are not sent to a shard. It is also called without bags, so that its optimizer counts the step.
    """
    sizes = bag_sizes(ids, offsets)
    bags = torch.repeat_interleave(torch.arange(len(offsets)), sizes)
    owners = ids % count
    replies: list[tuple[Tensor, Tensor, Reply]] = []
    for shard in range(count):
        mine = owners == shard
        present, counts = torch.unique_consecutive(bags[mine], return_counts=True)
        reply = request(shard, ids[mine] // count, counts.cumsum(0) - counts)
        replies.append((present, counts, reply))
    pooled: Tensor | None = None
    for present, counts, reply in replies:
        with span("look-up", "communication"):
            part = reply.wait()
        if pooling == "mean":
            part = part * (counts.to(part) / sizes[present].to(part)).unsqueeze(1)
        whole = part.new_zeros(len(offsets), part.shape[1]) if pooled is None else pooled
        pooled = whole.index_add(0, present.to(part.device), part)
    assert pooled is not None, "a table has at least one shard"
    return pooled


class ShardedEmbeddingBag(nn.Module):
    """Sums of bags by the servers of an `EmbeddingShard` each."""

    def __init__(self, shards: Sequence[ShardReference]) -> None:
        super().__init__()
        self._shards = shards

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        """The sums [b, dim] of the bags' vectors, on the CPU; an empty bag's is 0."""
        return pool_remotely(ids, offsets, len(self._shards), self._request)

    def _request(self, shard: int, rows: Tensor, offsets: Tensor) -> Reply:
        return self._shards[shard].pull(rows, offsets)


class EmbeddingBagShard(nn.EmbeddingBag):
    """One shard of an embedding table as torch's `EmbeddingBag`, for a `RemoteModule`."""

    def __init__(
        self,
        spec: ShardSpec,
        dim: int,
        initializer: Initializer,
        dtype: torch.dtype = torch.float32,
        *,
        mode: Pooling = "sum",
        sparse: bool = False,
    ) -> None:
        weight = initial_rows(spec, dim, initializer, dtype)
        super().__init__(spec.size, dim, mode=mode, sparse=sparse, _weight=weight)


class RemoteEmbeddingBag(nn.Module):
    """An embedding table in one `RemoteModule` for each server, which holds an `EmbeddingBagShard`."""

    def __init__(self, modules: Sequence[RemoteModule], pooling: Pooling) -> None:
        super().__init__()
        # Not submodules: `train` and `eval` of a RemoteModule would call its server, where they have no effect.
        self._modules_by_shard = tuple(modules)
        self._pooling: Pooling = pooling

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        """The pooled vectors [b, dim] of the bags; an empty bag's is 0."""
        return pool_remotely(ids, offsets, len(self._modules_by_shard), self._request, self._pooling)

    def remote_parameters(self) -> list[rpc.RRef[nn.Parameter]]:
        """References to the weights of all shards, for torch's DistributedOptimizer."""
        return [one for module in self._modules_by_shard for one in module.remote_parameters()]

    def _request(self, shard: int, rows: Tensor, offsets: Tensor) -> Future[Tensor]:
        # Torch generates the method, so that type checkers don't see it.
        return cast(Any, self._modules_by_shard[shard]).forward_async(rows, offsets)
