"""The trainers' calls of embedding and decoder."""

import torch
from torch import Tensor, nn

from rolecall.kit.parameter_server import RemoteDecoder, Send, ShardedEmbedding, Shards
from rolecall.kit.params import Precision
from rolecall.kit.precision import autocast
from rolecall.kit.text.batches import Segment
from rolecall.workloads.rnn_lm.model import State
from rolecall.workloads.rnn_lm.params import Params


class ShardedModel(nn.Module):
    """The losses by the built-in form: each distinct token is sent once, and all dropout is in `recurrent`."""

    def __init__(
        self, params: Params, shards: Shards, recurrent: nn.Module, device: torch.device, *, trainer: int, send: Send
    ) -> None:
        super().__init__()
        transfer_device = shards.transfer_device(device)
        self._embedding = ShardedEmbedding(shards.of("embedding"), transfer_device)
        self._recurrent = recurrent
        self._decoder = RemoteDecoder(shards.of("decoder"), transfer_device, params.loss_at, trainer, send)
        self._precision: Precision = params.precision
        self._device = device

    def forward(self, batch: Segment, state: State | None) -> tuple[Tensor, State]:
        """The loss [t · b] of each token, and the final state."""
        vectors = self._embedding(batch.inputs).to(self._device)
        with autocast(self._precision, self._device):
            hidden, after = self._recurrent(vectors, state)
        return self._decoder.losses(hidden.flatten(0, 1), batch.targets.flatten()), after
