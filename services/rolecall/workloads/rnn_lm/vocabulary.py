"""The layers that grow with the vocabulary, on the parameter servers: embedding table and decoder."""

from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torch import Tensor, nn

from rolecall.kit.data_order import derive_seed
from rolecall.kit.optimizers import dense_optimizer
from rolecall.kit.parameter_server import ShardedModule, ShardSpec, Uniform, initial_rows, sharded_embedding
from rolecall.kit.params import Precision
from rolecall.kit.precision import autocast, require_precision, weight_dtype
from rolecall.runtime.context import current
from rolecall.workloads.rnn_lm.params import Params


def sharded_vocabulary(params: Params, vocabulary: int, servers: int) -> list[ShardedModule]:
    """Embedding and decoder of `vocabulary` tokens. A single server holds both.

    With several servers, a third holds the embedding; the decoder gets more, because every token uses all its rows.
    """
    first = max(1, servers // 3) if servers > 1 else 0
    embedding, decoder = (range(first), range(first, servers)) if first else (range(1), range(1))
    optimizer = dense_optimizer(params.optimizer)
    table = sharded_embedding(
        "embedding",
        vocabulary,
        dim=params.embedding_dim,
        initializer=_initializer(params, 0),
        optimizer=optimizer,
        servers=embedding,
        dtype=weight_dtype(params.precision),
        sparse=False,  # every optimizer supports dense gradients
    )
    return [table, ShardedModule("decoder", vocabulary, partial(make_decoder, params), optimizer, decoder)]


def make_decoder(params: Params, spec: ShardSpec) -> "DecoderShard":
    """One shard of the decoder; called on its server."""
    require_precision(params.precision, current().device)
    return DecoderShard(params, spec)


def _initializer(params: Params, module: int) -> Uniform:
    return Uniform(derive_seed(params.seed, module), params.init_range)


class DecoderShard(nn.Module):
    """One shard of the decoder: logits of some tokens, and their terms of the loss."""

    def __init__(self, params: Params, spec: ShardSpec) -> None:
        super().__init__()
        self._spec = spec
        self._precision: Precision = params.precision
        weight = initial_rows(spec, params.hidden_dim, _initializer(params, 1), weight_dtype(params.precision))
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(torch.zeros(spec.size, dtype=weight.dtype))

    def forward(self, hidden: Tensor) -> Tensor:
        """The logits [n, size] of hidden states [n, h]."""
        with autocast(self._precision, hidden.device):
            # A trainer with mixed precision may send bfloat16 to a server without bfloat16.
            return F.linear(hidden.to(self.weight.dtype), self.weight, self.bias)

    def loss_terms(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """[2, n]: logsumexp of the logits, and the target's logit, or 0 if another shard has the target.

        As the vocabulary-parallel cross-entropy of Megatron-LM (Shoeybi et al., 2019); see `combine_loss_terms`.
        """
        logits = self(hidden).to(self.weight.dtype)
        own = targets % self._spec.count == self._spec.index
        rows = torch.where(own, targets // self._spec.count, 0)
        target_logits = logits.gather(1, rows.unsqueeze(1)).squeeze(1)
        # Torch's cross-entropy is logsumexp minus the target's logit, and faster than logsumexp.
        sums = F.cross_entropy(logits, rows, reduction="none") + target_logits
        return torch.stack([sums, torch.where(own, target_logits, 0)])


def combine_loss_terms(terms: list[Tensor]) -> Tensor:
    """The cross-entropy [n], in nats, from the terms [2, n] of all shards."""
    sums, target_logits = torch.stack(terms).unbind(1)
    return sums.logsumexp(0) - target_logits.sum(0)
