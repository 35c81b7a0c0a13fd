"""What grows with the vocabulary, on the parameter servers: the embedding table and the decoder."""

from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn

from rolecall.kit.data_order import derive_seed
from rolecall.kit.optimizers import dense_optimizer
from rolecall.kit.parameter_server import ShardedModule, ShardSpec, Uniform, initial_rows, sharded_embedding
from rolecall.kit.params import Precision
from rolecall.kit.precision import autocast, require_precision, weight_dtype
from rolecall.runtime.context import current
from rolecall.workloads.rnn_lm.params import Params


def sharded_vocabulary(params: Params, vocabulary: int, servers: int) -> list[ShardedModule]:
    """Embedding and decoder of `vocabulary` tokens: one server holds both; of several the first third holds the
    embedding, the others the decoder, each of whose rows computes for every token.
    """
    first = max(1, servers // 3) if servers > 1 else 0
    embedding, decoder = (range(first), range(first, servers)) if first else (range(1), range(1))
    optimizer = dense_optimizer(params.optimizer)
    table = sharded_embedding(
        "embedding",
        vocabulary,
        dim=params.embedding_dim,
        initializer=_draw(params, 0),
        optimizer=optimizer,
        servers=embedding,
        dtype=weight_dtype(params.precision),
        sparse=False,  # so that every optimizer takes its gradient
    )
    return [table, ShardedModule("decoder", vocabulary, partial(make_decoder, params), optimizer, decoder)]


def make_decoder(params: Params, part: ShardSpec) -> "DecoderShard":
    """The decoder for some of the tokens."""
    require_precision(params.precision, current().device)
    return DecoderShard(params, part)


def _draw(params: Params, module: int) -> Uniform:
    return Uniform(derive_seed(params.seed, module), params.init_range)


class DecoderShard(nn.Module):
    """The decoder's logits for some of the tokens, and their part in the loss."""

    def __init__(self, params: Params, part: ShardSpec) -> None:
        super().__init__()
        self._part = part
        self._precision: Precision = params.precision
        weight = initial_rows(part, params.hidden_dim, _draw(params, 1), weight_dtype(params.precision))
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(torch.zeros(part.size, dtype=weight.dtype))

    def forward(self, hidden: Tensor) -> Tensor:
        """The logits [n, size] of hidden states [n, h]."""
        with autocast(self._precision, hidden.device):
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
