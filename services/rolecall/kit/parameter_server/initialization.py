"""Row-wise sharding of a module, and the initial values of its rows.

Row `i` of the module is row `i // count` of shard `i % count`. If rows are sorted by frequency, each shard gets its
share of the frequent ones. Initial values are generated in blocks of consecutive rows of the whole module, so that they
don't depend on the number of shards, and no process ever holds all rows.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torch import Tensor, nn

from rolecall.kit.data_order import derive_seed

BLOCK_ROWS = 65_536

Initializer = Callable[[int, tuple[int, int]], Tensor]
"""(block number, (rows, width)) to the block's initial values, float64 [rows, width]; deterministic."""


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """Shard `index` of `count` of a module of `rows` rows."""

    index: int
    count: int
    rows: int

    @property
    def size(self) -> int:
        return len(range(self.index, self.rows, self.count))


@dataclass(frozen=True, slots=True)
class Uniform:
    """Uniform distribution on [-bound, bound)."""

    seed: int
    bound: float

    def __call__(self, block: int, size: tuple[int, int]) -> Tensor:
        generator = torch.Generator().manual_seed(derive_seed(self.seed, block))
        return torch.rand(size, generator=generator, dtype=torch.float64).mul_(2).sub_(1).mul_(self.bound)


@dataclass(frozen=True, slots=True)
class Normal:
    """Normal distribution with mean 0 and standard deviation `std`."""

    seed: int
    std: float

    def __call__(self, block: int, size: tuple[int, int]) -> Tensor:
        generator = torch.Generator().manual_seed(derive_seed(self.seed, block))
        return torch.randn(size, generator=generator, dtype=torch.float64).mul_(self.std)


def initial_rows(spec: ShardSpec, width: int, initializer: Initializer, dtype: torch.dtype = torch.float32) -> Tensor:
    """The initial rows [size, width] of a shard."""
    shard = torch.empty((spec.size, width), dtype=dtype)
    filled = 0
    for block, start in enumerate(range(0, spec.rows, BLOCK_ROWS)):
        values = initializer(block, (min(BLOCK_ROWS, spec.rows - start), width))
        rows = values[(spec.index - start) % spec.count :: spec.count]
        shard[filled : filled + len(rows)] = rows
        filled += len(rows)
    return shard


class EmbeddingShard(nn.Module):
    """One shard of an embedding table. With sparse gradients a step updates only the rows that it used."""

    def __init__(
        self,
        spec: ShardSpec,
        dim: int,
        initializer: Initializer,
        dtype: torch.dtype = torch.float32,
        *,
        sparse: bool = True,
    ) -> None:
        super().__init__()
        self._sparse = sparse
        self.weight = nn.Parameter(initial_rows(spec, dim, initializer, dtype))

    def forward(self, rows: Tensor) -> Tensor:
        """The vectors [n, dim] of local row numbers [n]."""
        return F.embedding(rows, self.weight, sparse=self._sparse)

    def pool(self, rows: Tensor, offsets: Tensor) -> Tensor:
        """The sum [b, dim] of each bag's vectors; bag `i` begins at `offsets[i]` in the local row numbers [n]."""
        return F.embedding_bag(rows, self.weight, offsets, mode="sum", sparse=self._sparse)
