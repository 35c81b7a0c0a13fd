# pyright: standard
"""A linear layer over many classes, such as the tokens of a vocabulary, sharded over the servers, with its loss.

The servers compute logits, their cross-entropy, and the gradient of both in closed form. Autograd would keep three
tensors of the size of the logits, and send the gradient of the weights from every trainer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from rolecall.kit.parameter_server.initialization import Initializer, ShardSpec, initial_rows
from rolecall.kit.parameter_server.remote import ShardReference
from rolecall.kit.parameter_server.shard import Shard
from rolecall.kit.params import Precision
from rolecall.kit.precision import autocast, weight_dtype
from rolecall.kit.worker import span

Send = Callable[[ShardReference, Tensor], None]
"""Sends to a shard of the decoder what it computes the gradient of its weights from."""


@dataclass(slots=True)
class _Call:
    """The values that the last call of a trainer left for the gradient of the weights.

    For token `i`, the gradient of the logits is `factors[i]` times row `i` of `logits`, minus 1 at its target, where
    the factor and the 1 are weighed by what the trainer sends.
    """

    hidden: Tensor
    """[n, h] hidden states."""
    logits: Tensor
    """[n, size], overwritten by exp(logit - largest logit of the token), or by the gradient of the logits."""
    factors: Tensor
    """[n] The reciprocal of each row's sum, or 1 for a gradient."""
    own: Tensor
    """[n] True if the shard has the token's target."""
    rows: Tensor
    """[n] The target's local row number, or 0."""
    stream: torch.cuda.Stream | None = field(init=False)
    """The stream that wrote the tensors; None on a CPU."""

    def __post_init__(self) -> None:
        self.mark_written()

    def mark_written(self) -> None:
        """Note that the current stream is the last that wrote the tensors."""
        device = self.logits.device
        self.stream = torch.cuda.current_stream(device) if device.type == "cuda" else None


class DecoderShard(nn.Module):
    """One shard of the decoder: logits of some tokens, and their terms of the loss."""

    def __init__(self, spec: ShardSpec, width: int, initializer: Initializer, precision: Precision) -> None:
        """For hidden states of `width` numbers; biases begin with 0."""
        super().__init__()
        self._spec = spec
        self._precision: Precision = precision
        weight = initial_rows(spec, width, initializer, weight_dtype(precision))
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(torch.zeros(spec.size, dtype=weight.dtype))
        self._calls: dict[int, _Call] = {}

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
        own, rows = self._own(targets)
        target_logits = logits.gather(1, rows.unsqueeze(1)).squeeze(1)
        # Torch's cross-entropy is logsumexp minus the target's logit, and faster than logsumexp.
        sums = F.cross_entropy(logits, rows, reduction="none") + target_logits
        return torch.stack([sums, torch.where(own, target_logits, 0)])

    def loss_and_gradient_terms(self, hidden: Tensor, targets: Tensor, trainer: int) -> Tensor:
        """[2 + 2 · h, n]: `loss_terms`; the mean of the weights under the softmax of the logits; the target's weights.

        The last two are the terms of the gradient of the hidden states, see `combine_gradient_terms`. The shard keeps
        the exponentials for `set_gradients`, in memory that the next call of this trainer uses again.
        """
        hidden = hidden.to(self.weight.dtype)
        logits = self._logits(hidden, trainer)
        own, rows = self._own(targets)
        target_logits = torch.where(own, logits.gather(1, rows.unsqueeze(1)).squeeze(1), 0)
        largest = logits.amax(1, keepdim=True)
        sums = logits.sub_(largest).exp_().sum(1)
        call = self._calls[trainer] = _Call(hidden, logits, sums.reciprocal(), own, rows)
        means = self._product(logits, self.weight) * call.factors.unsqueeze(1)
        target_weights = torch.where(own.unsqueeze(1), self.weight[rows], 0)
        return torch.cat([torch.stack([largest.squeeze(1) + sums.log(), target_logits]), means.t(), target_weights.t()])

    def kept_logits(self, hidden: Tensor, trainer: int) -> Tensor:
        """The logits [n, size] of hidden states [n, h], which the shard keeps for `hidden_gradient`."""
        hidden = hidden.to(self.weight.dtype)
        everything = torch.zeros(len(hidden), dtype=torch.int64, device=hidden.device)
        logits = self._logits(hidden, trainer)
        self._calls[trainer] = _Call(hidden, logits, torch.ones_like(hidden[:, 0]), everything.bool(), everything)
        return logits

    def hidden_gradient(self, gradient: Tensor, trainer: int) -> Tensor:
        """The gradient [n, h] of the hidden states, from that of the logits [n, size], which the shard keeps."""
        call = self._kept(trainer)
        call.logits.copy_(gradient)
        call.mark_written()
        return self._product(call.logits, self.weight)

    def set_gradients(self, received: Sequence[Tensor]) -> None:
        """Set `grad` to the mean over the trainers. Each sent [2, n]: the weight of each token's softmax in this shard,
        and of its target, in the gradient of the loss."""
        weight, bias = (self._kept_gradient(one) for one in (self.weight, self.bias))
        rows: list[Tensor] = []
        values: list[Tensor] = []
        for trainer, (of_softmax, of_target) in enumerate(one / len(received) for one in received):
            call = self._kept(trainer)
            factors = of_softmax * call.factors
            columns = call.logits.t()
            beta = 0 if trainer == 0 else 1  # 0 ignores what the memory holds.
            self._add_product(weight, columns, call.hidden * factors.unsqueeze(1), beta)
            bias.addmv_(columns, factors, beta=beta)
            rows.append(call.rows[call.own])
            values.append(torch.cat([call.hidden, torch.ones_like(call.hidden[:, :1])], 1)[call.own])
            values[-1] *= of_target[call.own].unsqueeze(1)
        # Coalescing adds values of equal rows in a fixed order, also on GPUs.
        size = (self._spec.size, self.weight.shape[1] + 1)
        targets = torch.sparse_coo_tensor(torch.cat(rows).unsqueeze(0), torch.cat(values), size).coalesce()
        (own_rows,), own_values = targets.indices(), targets.values()
        weight.index_add_(0, own_rows, own_values[:, :-1], alpha=-1)
        bias.index_add_(0, own_rows, own_values[:, -1], alpha=-1)

    def _own(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        own = targets % self._spec.count == self._spec.index
        return own, torch.where(own, targets // self._spec.count, 0)

    def _logits(self, hidden: Tensor, trainer: int) -> Tensor:
        """The logits [n, size], in the memory that the trainer's last call used."""
        before = self._calls.get(trainer)
        if before is None or len(before.logits) < len(hidden):
            return self(hidden).to(self.weight.dtype)
        logits = before.logits[: len(hidden)]
        if self._precision == "bfloat16":
            return logits.copy_(self(hidden))
        return torch.addmm(self.bias, hidden, self.weight.t(), out=logits)

    def _kept(self, trainer: int) -> _Call:
        """The trainer's last call, ready for the current stream."""
        call = self._calls[trainer]
        if call.stream is not None:
            # On a GPU, each RPC runs on a stream of its own. `Shard` synchronizes after it used the gradients, so that
            # the next call can use the memory again.
            torch.cuda.current_stream(call.logits.device).wait_stream(call.stream)
        return call

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        with autocast(self._precision, left.device):
            return (left @ right).to(self.weight.dtype)

    def _add_product(self, total: Tensor, left: Tensor, right: Tensor, beta: int) -> None:
        if self._precision == "bfloat16":
            total.mul_(beta).add_(self._product(left, right))
        else:
            total.addmm_(left, right, beta=beta)

    def _kept_gradient(self, parameter: nn.Parameter) -> Tensor:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        return parameter.grad


def combine_loss_terms(terms: Tensor) -> Tensor:
    """The cross-entropy [n], in nats, from the terms [shards, 2, n] of all shards."""
    sums, target_logits = terms.unbind(1)
    return sums.logsumexp(0) - target_logits.sum(0)


def combine_gradient_terms(terms: Tensor) -> tuple[Tensor, Tensor]:
    """From the terms [shards, 2 + 2 · h, n] of all shards: the share [shards, n] of each shard in each token's softmax,
    and the gradient [n, h] of each token's loss with respect to its hidden state."""
    shares = terms[:, 0].softmax(0)
    means, target_weights = terms[:, 2:].chunk(2, 1)
    return shares, ((shares.unsqueeze(1) * means).sum(0) - target_weights.sum(0)).t()


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
        """The losses, which the servers compute together with their gradients.

        The backward pass sends each server the weights of its gradients, and returns the gradient of `hidden`.
        """
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
