"""The embedding table on the parameter servers."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rolecall.kit.optimizers import sparse_optimizer
from rolecall.kit.parameter_server import ShardedModule, sharded_embedding
from rolecall.kit.precision import weight_dtype
from rolecall.workloads.embedding_ddp.params import Params

TABLE = "embedding"


def sharded_table(params: Params, rows: int, servers: int) -> ShardedModule:
    """A table of `rows` rows over all servers. It stays on the CPU, which has more memory than a GPU."""
    return sharded_embedding(
        TABLE,
        rows,
        dim=params.embedding_dim,
        initializer=TableInitializer(params.seed, params.embedding_std),
        optimizer=sparse_optimizer(params.sparse_optimizer),
        servers=range(servers),
        dtype=weight_dtype(params.precision),
        cpu=True,
    )


@dataclass(frozen=True, slots=True)
class TableInitializer:
    """Normally distributed initial values of the table."""

    # Not the kit's `Normal`, which seeds its blocks differently: existing seeds must give the same values.
    seed: int
    std: float

    def __call__(self, block: int, size: tuple[int, int]) -> Tensor:
        """As the kit's `Initializer`."""
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + block) % 2**63)
        return torch.randn(size, generator=generator, dtype=torch.float64).mul_(self.std)
