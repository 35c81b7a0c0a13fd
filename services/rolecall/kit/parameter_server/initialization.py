# pyright: standard
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
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torch import Tensor, nn

from rolecall.kit.data_order import derive_seed
from rolecall.kit.native import library, row_loops

BLOCK_ROWS = 65_536
_DRAWN_BYTES = 1 << 28
"""The size of all blocks that are generated at the same time, if they are more than one."""

Initializer = Callable[[int, Tensor], Any]
"""Fills a block, float64 [rows, width], with the initial values of the block of this number; deterministic."""


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

    def __call__(self, block: int, values: Tensor) -> None:
        values.uniform_(generator=torch.Generator().manual_seed(derive_seed(self.seed, block)))
        values.mul_(2).sub_(1).mul_(self.bound)


@dataclass(frozen=True, slots=True)
class Normal:
    """Normal distribution with mean 0 and standard deviation `std`."""

    seed: int
    std: float

    def __call__(self, block: int, values: Tensor) -> None:
        fill_standard_normal(values, derive_seed(self.seed, block)).mul_(self.std)


def fill_standard_normal(values: Tensor, seed: int) -> Tensor:
    """Fill contiguous float64 `values`, of any shape, as `normal_` does after `manual_seed(seed)`, but several times
    faster. The values equal torch's except for rounding."""
    # `is_native` would log a missing library, but that matters for updates, not for values that are drawn once.
    has_loop = library.is_available() and values.dtype == torch.float64 and library.is_native(values)
    if has_loop and values.numel() >= row_loops.GROUP:
        row_loops.standard_normal(values, seed)
        return values
    generator = torch.Generator().manual_seed(seed)
    if values.numel() < row_loops.GROUP:
        return values.normal_(generator=generator)
    _fill_in_chunks(values.view(-1), generator)
    return values


def _fill_in_chunks(values: Tensor, generator: torch.Generator) -> None:
    """As `normal_`, which transforms groups of 16 uniform numbers (Box and Muller, 1958) one by one; in vectors."""
    rest = len(values) % row_loops.GROUP
    for chunk in values[: len(values) - rest].split(_CHUNK):
        _transform(chunk.uniform_(generator=generator))
    if rest:  # Torch draws the rest, and then the last 16 numbers again.
        values[-rest:].uniform_(generator=generator)
        _transform(values[-row_loops.GROUP :].uniform_(generator=generator))


_CHUNK = 2048 * row_loops.GROUP
"""Numbers that fit into a core's L2 cache, and that torch does not share out to threads of its own."""


def _transform(uniform: Tensor) -> None:
    """Make uniform numbers on [0, 1) normal, in place, in groups of 16."""
    groups = uniform.view(-1, 2, row_loops.GROUP // 2)
    radius = (1 - groups[:, 0]).log_().mul_(-2).sqrt_()
    angle = groups[:, 1] * (2 * math.pi)
    torch.mul(radius, angle.cos(), out=groups[:, 0])
    torch.mul(radius, angle.sin_(), out=groups[:, 1])


def initial_rows(spec: ShardSpec, width: int, initializer: Initializer, dtype: torch.dtype = torch.float32) -> Tensor:
    """The initial rows [size, width] of a shard. Blocks are generated on all cores, because nothing else runs yet."""
    shard = torch.empty((spec.size, width), dtype=dtype)
    blocks = -(-spec.rows // BLOCK_ROWS)
    at_once = max(1, min(len(os.sched_getaffinity(0)), blocks, _DRAWN_BYTES // (BLOCK_ROWS * width * 8)))

    def fill(first: int) -> None:
        block_values = torch.empty((min(BLOCK_ROWS, spec.rows), width), dtype=torch.float64)
        for block in range(first, blocks, at_once):
            start = block * BLOCK_ROWS
            values = block_values[: spec.rows - start]
            initializer(block, values)
            rows = values[(spec.index - start) % spec.count :: spec.count]
            filled = len(range(spec.index, start, spec.count))
            shard[filled : filled + len(rows)] = rows

    with ThreadPoolExecutor(at_once) as threads:
        list(threads.map(fill, range(at_once)))
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
