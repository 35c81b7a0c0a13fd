"""The rows of a module that one server holds, and their first values.

Row `i` of the whole is row `i // count` of shard `i % count`: where rows are numbered by falling frequency, each shard
gets its share of the frequent ones. First values are drawn in blocks of consecutive rows of the whole, so that they are
the same for any number of shards, and no process ever holds all of them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn

from rolecall.kit.data_order import derive_seed

BLOCK_ROWS = 65_536

Draw = Callable[[int, tuple[int, int]], Tensor]
"""The first values of block number `n`, float64 [rows, width]; the same at every call."""


@dataclass(frozen=True, slots=True)
class Part:
    """Shard `index` of `count` of a module of `rows` rows."""

    index: int
    count: int
    rows: int

    @property
    def size(self) -> int:
        """This shard's own rows."""
        return len(range(self.index, self.rows, self.count))


@dataclass(frozen=True, slots=True)
class Uniform:
    """Draws evenly between `-bound` and `bound`."""

    seed: int
    bound: float

    def __call__(self, block: int, size: tuple[int, int]) -> Tensor:
        """See `Draw`."""
        generator = torch.Generator().manual_seed(derive_seed(self.seed, block))
        return torch.rand(size, generator=generator, dtype=torch.float64).mul_(2).sub_(1).mul_(self.bound)


@dataclass(frozen=True, slots=True)
class Normal:
    """Draws from a normal distribution of mean 0 and standard deviation `std`."""

    seed: int
    std: float

    def __call__(self, block: int, size: tuple[int, int]) -> Tensor:
        """See `Draw`."""
        generator = torch.Generator().manual_seed(derive_seed(self.seed, block))
        return torch.randn(size, generator=generator, dtype=torch.float64).mul_(self.std)


def initial_rows(part: Part, width: int, draw: Draw, dtype: torch.dtype = torch.float32) -> Tensor:
    """A shard's first rows [size, width]."""
    own = torch.empty((part.size, width), dtype=dtype)
    filled = 0
    for block, start in enumerate(range(0, part.rows, BLOCK_ROWS)):
        values = draw(block, (min(BLOCK_ROWS, part.rows - start), width))
        mine = values[(part.index - start) % part.count :: part.count]
        own[filled : filled + len(mine)] = mine
        filled += len(mine)
    return own


class EmbeddingShard(nn.Module):
    """Some rows of an embedding table. Sparse gradients cost a step the rows that it touched, dense ones all rows."""

    def __init__(
        self, part: Part, dim: int, draw: Draw, dtype: torch.dtype = torch.float32, *, sparse: bool = True
    ) -> None:
        super().__init__()
        self._sparse = sparse
        self.weight = nn.Parameter(initial_rows(part, dim, draw, dtype))

    def forward(self, rows: Tensor) -> Tensor:
        """The vectors [n, dim] of this shard's own row numbers [n]."""
        return F.embedding(rows, self.weight, sparse=self._sparse)
