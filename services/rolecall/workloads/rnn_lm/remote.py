"""The decoder on the parameter servers, and the trainers' calls of it."""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torch import Tensor, nn

from rolecall.kit.data_order import derive_seed
from rolecall.kit.parameter_server import ShardReference, ShardSpec, Uniform, initial_rows
from rolecall.kit.params import Precision
from rolecall.kit.precision import autocast, weight_dtype
from rolecall.workloads.rnn_lm.params import Params


class DecoderShard(nn.Module):
    """One shard of the decoder: logits of some tokens, and their terms of the loss."""

    def __init__(self, params: Params, spec: ShardSpec) -> None:
        super().__init__()
        self._spec = spec
        self._precision: Precision = params.precision
        initializer = Uniform(derive_seed(params.seed, 1), params.init_range)
        weight = initial_rows(spec, params.hidden_dim, initializer, weight_dtype(params.precision))
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


class RemoteDecoder:
    """Losses of hidden states by the decoder on the servers; `transfer_device` is the device of sent tensors."""

    def __init__(
        self, shards: Sequence[ShardReference], transfer_device: torch.device, loss_at: Literal["server", "trainer"]
    ) -> None:
        self._shards = shards
        self._transfer_device = transfer_device
        self._losses = self._at_servers if loss_at == "server" else self._at_trainer

    def losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """The cross-entropy [n], in nats, of hidden states [n, h] and target tokens [n]."""
        return self._losses(hidden.to(self._transfer_device), targets.to(self._transfer_device))

    def _at_servers(self, hidden: Tensor, targets: Tensor) -> Tensor:
        answers = [shard.compute("loss_terms", hidden, targets) for shard in self._shards]
        return combine_loss_terms([answer.wait() for answer in answers])

    def _at_trainer(self, hidden: Tensor, targets: Tensor) -> Tensor:
        answers = [shard.compute("forward", hidden) for shard in self._shards]
        sizes = torch.tensor([0, *(shard.spec.size for shard in self._shards)])
        first = sizes.cumsum(0).to(targets.device)  # where each shard's logits start
        count = len(self._shards)
        logits = torch.cat([answer.wait() for answer in answers], 1)
        columns = first[targets % count] + targets // count
        return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), columns, reduction="none")
