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
    """A table of `rows` rows over all servers; it stays in their main memory, where there is more room."""
    return sharded_embedding(
        TABLE,
        rows,
        dim=params.embedding_dim,
        initializer=InitialValues(params.seed, params.embedding_std),
        optimizer=sparse_optimizer(params.sparse_optimizer),
        servers=range(servers),
        dtype=weight_dtype(params.precision),
        cpu=True,
    )


@dataclass(frozen=True, slots=True)
class InitialValues:
    """The table's first values, normally distributed."""

    # Not the kit's `Normal`, whose blocks have other seeds: a job's seed keeps its meaning.
    seed: int
    std: float

    def __call__(self, block: int, size: tuple[int, int]) -> Tensor:
        """The values of block number `block`."""
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + block) % 2**63)
        return torch.randn(size, generator=generator, dtype=torch.float64).mul_(self.std)
