"""Row-wise sharding of a module, and the initial values of its rows.

Row `i` of the module is row `i // count` of shard `i % count`. If rows are sorted by frequency, each shard gets its
share of the frequent ones. Initial values are generated in blocks of consecutive rows of the whole module, so that they
don't depend on the number of shards, and no process ever holds all rows.
"""

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torch import Tensor, nn

from rolecall.kit.data_order import derive_seed

BLOCK_ROWS = 65_536
_DRAWN_BYTES = 1 << 28
"""The size of all blocks that are generated at the same time, if they are more than one."""

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
        return standard_normal(size, generator).mul_(self.std)


def standard_normal(size: tuple[int, int], generator: torch.Generator) -> Tensor:
    """The values of `torch.randn` in float64, except for rounding, in about 0.6 of its time in one thread.

    Torch transforms groups of 16 uniform numbers (Box and Muller, 1958) one by one, and this function in vectors.
    """
    count = size[0] * size[1]
    if count < _GROUP:
        return torch.randn(size, generator=generator, dtype=torch.float64)
    values = torch.empty(count, dtype=torch.float64)
    for piece in values[: count - count % _GROUP].split(_PIECE):
        _transform(torch.rand(len(piece), generator=generator, dtype=torch.float64, out=piece))
    if count % _GROUP:  # Torch draws the rest, and then the last 16 numbers again.
        torch.rand(count % _GROUP, generator=generator, dtype=torch.float64)
        values[-_GROUP:] = _transform(torch.rand(_GROUP, generator=generator, dtype=torch.float64))
    return values.view(size)


_GROUP = 16
_PIECE = 2048 * _GROUP
"""Numbers that fit into a core's L2 cache, and that torch does not share out to threads of its own."""


def _transform(uniform: Tensor) -> Tensor:
    """Make uniform numbers on [0, 1) normal, in place, in groups of 16."""
    groups = uniform.view(-1, 2, _GROUP // 2)
    radius = (1 - groups[:, 0]).log_().mul_(-2).sqrt_()
    angle = groups[:, 1] * (2 * math.pi)
    torch.mul(radius, angle.cos(), out=groups[:, 0])
    torch.mul(radius, angle.sin_(), out=groups[:, 1])
    return uniform


def initial_rows(spec: ShardSpec, width: int, initializer: Initializer, dtype: torch.dtype = torch.float32) -> Tensor:
    """The initial rows [size, width] of a shard. Blocks are generated on all cores, because nothing else runs yet."""
    shard = torch.empty((spec.size, width), dtype=dtype)

    def fill(block: int) -> None:
        start = block * BLOCK_ROWS
        values = initializer(block, (min(BLOCK_ROWS, spec.rows - start), width))
        rows = values[(spec.index - start) % spec.count :: spec.count]
        filled = len(range(spec.index, start, spec.count))
        shard[filled : filled + len(rows)] = rows

    at_once = max(1, min(len(os.sched_getaffinity(0)), _DRAWN_BYTES // (BLOCK_ROWS * width * 8)))
    with ThreadPoolExecutor(at_once) as threads:
        list(threads.map(fill, range(-(-spec.rows // BLOCK_ROWS))))
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
