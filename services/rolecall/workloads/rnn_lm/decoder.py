"""The decoder on the parameter servers: logits, their loss, and the gradient of both in closed form.

Autograd would keep three tensors of the size of the logits, and send the gradient of the weights from every trainer.
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torch import Tensor, nn

from rolecall.kit.data_order import derive_seed
from rolecall.kit.parameter_server import ShardSpec, Uniform, initial_rows
from rolecall.kit.params import Precision
from rolecall.kit.precision import autocast, weight_dtype
from rolecall.workloads.rnn_lm.params import Params


@dataclass(slots=True)
class _Call:
    """What the last call of a trainer left for the gradient of the weights.

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

    def __init__(self, params: Params, spec: ShardSpec) -> None:
        super().__init__()
        self._spec = spec
        self._precision: Precision = params.precision
        initializer = Uniform(derive_seed(params.seed, 1), params.init_range)
        weight = initial_rows(spec, params.hidden_dim, initializer, weight_dtype(params.precision))
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

    def set_gradients(self, received: list[Tensor]) -> None:
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
