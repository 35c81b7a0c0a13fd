"""The trainers' side of the decoder on the parameter servers."""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torch import Tensor

from rolecall.kit.parameter_server.remote import ShardReference
from rolecall.workloads.rnn_lm.vocabulary import combine_loss_terms


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
