"""What grows with the vocabulary: the embedding table and the decoder, whole or cut by rows into shards.

Row `i` of `rows` is row `i // count` of shard `i % count`. Tokens are numbered by falling frequency, so that each shard
gets its share of the frequent ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn

from rolecall.kit.precision import weight_dtype
from rolecall.runtime.data_order import derive_seed
from rolecall.workloads.rnn_lm.params import Params

_BLOCK_ROWS = 65_536
_DRAWS = {"embedding": 0, "decoder": 1}


@dataclass(frozen=True, slots=True)
class Part:
    """Shard `index` of `count` of a table of `rows` rows."""

    index: int
    count: int
    rows: int

    @property
    def size(self) -> int:
        """This shard's own rows."""
        return len(range(self.index, self.rows, self.count))


class EmbeddingShard(nn.Module):
    """Some rows of the embedding table."""

    name = "embedding"

    def __init__(self, params: Params, part: Part) -> None:
        super().__init__()
        self.weight = nn.Parameter(own_rows(params, self.name, part, params.embedding_dim))

    def forward(self, rows: Tensor) -> Tensor:
        """The vectors [n, e] of this shard's own row numbers [n]."""
        return F.embedding(rows, self.weight)


class DecoderShard(nn.Module):
    """The decoder's logits for some of the tokens, and their part in the loss."""

    name = "decoder"

    def __init__(self, params: Params, part: Part) -> None:
        super().__init__()
        self._part = part
        self.weight = nn.Parameter(own_rows(params, self.name, part, params.hidden_dim))
        self.bias = nn.Parameter(torch.zeros(part.size, dtype=self.weight.dtype))

    def forward(self, hidden: Tensor) -> Tensor:
        """The logits [n, size] of hidden states [n, h]."""
        # A trainer with mixed precision may send bfloat16 to a server without.
        return F.linear(hidden.to(self.weight.dtype), self.weight, self.bias)

    def loss_terms(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """[2, n]: the log of the sum of exp(logits), and the target's logit, or 0 if another shard has it.

        After the vocabulary-parallel cross-entropy of Megatron-LM (Shoeybi et al., 2019): see `combine`.
        """
        logits = self(hidden).to(self.weight.dtype)
        own = targets % self._part.count == self._part.index
        rows = torch.where(own, targets // self._part.count, 0)
        picked = logits.gather(1, rows.unsqueeze(1)).squeeze(1)
        # Torch's cross-entropy is the log of the sum less the picked logit, and quicker than logsumexp.
        sums = F.cross_entropy(logits, rows, reduction="none") + picked
        return torch.stack([sums, torch.where(own, picked, 0)])


def combine(terms: list[Tensor]) -> Tensor:
    """The cross-entropy [n], in nats, from all shards' terms [2, n]."""
    sums, picked = torch.stack(terms).unbind(1)
    return sums.logsumexp(0) - picked.sum(0)


def first_rows(params: Params, table: str, rows: int, width: int) -> Iterator[Tensor]:
    """A table's first values in blocks of consecutive rows, float64; the same however many shards there are."""
    key = derive_seed(params.seed, _DRAWS[table])
    for block, start in enumerate(range(0, rows, _BLOCK_ROWS)):
        generator = torch.Generator().manual_seed(derive_seed(key, block))
        size = (min(_BLOCK_ROWS, rows - start), width)
        values = torch.rand(size, generator=generator, dtype=torch.float64)
        yield values.mul_(2).sub_(1).mul_(params.init_range)


def own_rows(params: Params, table: str, part: Part, width: int) -> Tensor:
    """A shard's first rows [size, width], made without ever holding the whole table."""
    own = torch.empty((part.size, width), dtype=weight_dtype(params.precision))
    filled = 0
    for block, values in enumerate(first_rows(params, table, part.rows, width)):
        mine = values[(part.index - block * _BLOCK_ROWS) % part.count :: part.count]
        own[filled : filled + len(mine)] = mine
        filled += len(mine)
    return own
