"""The trainers' calls of embedding and decoder."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from rolecall.kit.parameter_server import Shard, ShardedEmbedding, ShardReference, Shards
from rolecall.kit.params import Precision
from rolecall.kit.precision import autocast
from rolecall.kit.text.batches import Segment
from rolecall.kit.worker import span
from rolecall.workloads.rnn_lm.decoder import combine_gradient_terms, combine_loss_terms
from rolecall.workloads.rnn_lm.model import State
from rolecall.workloads.rnn_lm.params import Params

Send = Callable[[ShardReference, Tensor], None]
"""Sends to a shard of the decoder what it computes the gradient of its weights from."""


class RemoteDecoder:
    """Losses of hidden states by the decoder on the servers; `transfer_device` is the device of sent tensors.

    The backward pass sends each shard its part with `send`, then continues with the gradient of the hidden states.
    """

    def __init__(
        self,
        shards: Sequence[ShardReference],
        transfer_device: torch.device,
        loss_at: Literal["server", "trainer"],
        trainer: int,
        send: Send,
    ) -> None:
        self._shards = shards
        self._transfer_device = transfer_device
        self._losses = self._at_servers if loss_at == "server" else self._at_trainer
        self._trainer = trainer
        self._send = send

    def losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """The cross-entropy [n], in nats, of hidden states [n, h] and target tokens [n]."""
        return self._losses(hidden.to(self._transfer_device), targets.to(self._transfer_device))

    def _at_servers(self, hidden: Tensor, targets: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return combine_loss_terms(self._ask("loss_terms", hidden, targets))
        terms = self._ask("loss_and_gradient_terms", hidden.detach(), targets, self._trainer)
        shares, gradient = combine_gradient_terms(terms)

        def backward(of_losses: Tensor) -> Tensor:
            for shard, share in zip(self._shards, shares, strict=True):
                self._send(shard, torch.stack([of_losses * share, of_losses]))
            return of_losses.unsqueeze(1) * gradient

        return _Computed.apply(hidden, combine_loss_terms(terms[:, :2]), backward)

    def _ask(self, method: str, hidden: Tensor, targets: Tensor, *arguments: int) -> Tensor:
        answers = [shard.call(Shard.compute, method, False, (hidden, targets), *arguments) for shard in self._shards]
        with span("decoder", "communication"):
            return torch.stack([answer.wait() for answer in answers])

    def _at_trainer(self, hidden: Tensor, targets: Tensor) -> Tensor:
        sizes = [shard.spec.size for shard in self._shards]
        columns = logit_columns(targets, sizes)
        method, *arguments = ("kept_logits", self._trainer) if torch.is_grad_enabled() else ("forward",)
        inputs = (hidden.detach(),)
        answers = [shard.call(Shard.compute, method, False, inputs, *arguments) for shard in self._shards]
        with span("decoder", "communication"):
            logits = torch.cat([answer.wait() for answer in answers], 1)
        if not torch.is_grad_enabled():
            return token_losses(logits, columns)

        def backward(of_logits: Tensor) -> Tensor:
            parts = zip(self._shards, of_logits.split(sizes, 1), strict=True)
            answers = [
                shard.call(Shard.compute, "hidden_gradient", False, (part,), self._trainer) for shard, part in parts
            ]
            with span("decoder", "communication"):
                gradients = torch.stack([answer.wait() for answer in answers])
            for shard in self._shards:
                self._send(shard, gradients.new_ones(2, len(of_logits)))
            return gradients.sum(0)

        return token_losses(_Computed.apply(hidden, logits, backward), columns)


class _Computed(torch.autograd.Function):
    """Values that servers computed from hidden states. `backward` maps their gradient to that of the hidden states."""

    @staticmethod
    def forward(ctx: FunctionCtx, hidden: Tensor, values: Tensor, backward: Callable[[Tensor], Tensor]) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.hidden_dtype, ctx.of_hidden = hidden.dtype, backward  # pyright: ignore[reportAttributeAccessIssue] - torch's way
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ctx.of_hidden(gradient).to(ctx.hidden_dtype), None, None


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
