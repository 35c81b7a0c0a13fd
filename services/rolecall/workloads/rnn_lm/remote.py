"""The decoder on the parameter servers, and the trainers' calls of it and of the embedding."""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torch import Tensor, nn

from rolecall.kit.data_order import derive_seed
from rolecall.kit.parameter_server import (
    ShardedEmbedding,
    ShardReference,
    Shards,
    ShardSpec,
    Uniform,
    initial_rows,
)
from rolecall.kit.params import Precision
from rolecall.kit.precision import autocast, weight_dtype
from rolecall.kit.text.batches import Segment
from rolecall.kit.worker import wait
from rolecall.workloads.rnn_lm.model import State
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
        return combine_loss_terms([wait(answer) for answer in answers])

    def _at_trainer(self, hidden: Tensor, targets: Tensor) -> Tensor:
        answers = [shard.compute("forward", hidden) for shard in self._shards]
        columns = logit_columns(targets, [shard.spec.size for shard in self._shards])
        return token_losses(torch.cat([wait(answer) for answer in answers], 1), columns)


def logit_columns(tokens: Tensor, sizes: Sequence[int]) -> Tensor:
    """The columns [n] of tokens [n] in the concatenated logits of shards of these sizes."""
    first = torch.tensor([0, *sizes]).cumsum(0).to(tokens.device)  # where each shard's logits start
    return first[tokens % len(sizes)] + tokens // len(sizes)


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy [n], in nats, of logits [n, vocabulary] of any precision, computed at least in float32."""
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(exact, targets.to(exact.device), reduction="none")


class ShardedModel(nn.Module):
    """The losses by the built-in form: each distinct token is sent once, and all dropout is in `recurrent`."""

    def __init__(self, params: Params, shards: Shards, recurrent: nn.Module, device: torch.device) -> None:
        super().__init__()
        transfer_device = shards.transfer_device(device)
        self._embedding = ShardedEmbedding(shards.of("embedding"), transfer_device)
        self._recurrent = recurrent
        self._decoder = RemoteDecoder(shards.of("decoder"), transfer_device, params.loss_at)
        self._precision: Precision = params.precision
        self._device = device

    def forward(self, batch: Segment, state: State | None) -> tuple[Tensor, State]:
        """The loss [t · b] of each token, and the final state."""
        vectors = self._embedding(batch.inputs).to(self._device)
        with autocast(self._precision, self._device):
            hidden, after = self._recurrent(vectors, state)
        return self._decoder.losses(hidden.flatten(0, 1), batch.targets.flatten()), after
