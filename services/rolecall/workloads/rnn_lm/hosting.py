"""A shard of the vocabulary on its parameter server, with its optimizer; and the calls that trainers make to it.

Results go back on the device on which the arguments came: what crosses between two GPUs stays on GPUs.
"""

import threading
from typing import cast

import torch
import torch.distributed.autograd as dist_autograd
from torch import Tensor, nn
from torch.distributed import rpc
from torch.futures import Future

from rolecall.kit.optimizers import dense_optimizer, scale_rates
from rolecall.kit.precision import autocast, require_precision
from rolecall.runtime import context as runtime_context
from rolecall.runtime.checkpoint import flatten_optimizer, restore_optimizer
from rolecall.runtime.remote import StepBarrier, passed_on
from rolecall.spec.plan import CheckpointManifest, CheckpointPart
from rolecall.workloads.rnn_lm.params import Params
from rolecall.workloads.rnn_lm.vocabulary import DecoderShard, EmbeddingShard, Part

_KINDS = {kind.name: kind for kind in (EmbeddingShard, DecoderShard)}
_WEIGHTS = "weights/"


class Hosted:
    """One shard and its optimizer, which steps once all `trainers` have contributed their gradients.

    A step is two calls of every trainer: `gather` answers with the norm of the mean gradient, from which the trainers
    compute by how much all gradients must be scaled, and `update` applies it.
    """

    def __init__(self, params: Params, table: str, part: Part, trainers: int) -> None:
        self._params = params
        self._name = f"{table}-{part.index}"
        self._trainers = trainers
        self.device = runtime_context.current().device
        require_precision(params.precision, self.device)
        self.module = _KINDS[table](params, part).to(self.device)
        kind, arguments = dense_optimizer(params.optimizer)
        self._optimizer = kind(self.module.parameters(), **arguments)
        self._lock = threading.Lock()
        self._gathered = StepBarrier(trainers, self._take_mean)
        self._updated: int | None = None

    def vectors(self, rows: Tensor) -> Tensor:
        """The vectors [n, e] of the embedding's own row numbers [n]."""
        return self.module(rows.to(self.device)).to(rows.device)

    def logits(self, hidden: Tensor) -> Tensor:
        """The decoder's logits [n, size] of hidden states [n, h]."""
        with autocast(self._params.precision, self.device), torch.set_grad_enabled(hidden.requires_grad):
            return self.module(hidden.to(self.device)).to(hidden.device)

    def loss_terms(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """The decoder's terms [2, n] of the loss of hidden states [n, h] that should give targets [n]."""
        with autocast(self._params.precision, self.device), torch.set_grad_enabled(hidden.requires_grad):
            terms = cast(DecoderShard, self.module).loss_terms(hidden.to(self.device), targets.to(self.device))
            return terms.to(hidden.device)

    def gather(self, context_id: int, step: int, trainer: int) -> Future[float]:
        """Take trainer `trainer`'s gradients of `step`; the squared norm of all trainers' mean, once all are here."""
        return self._gathered.join(step, trainer, context_id)

    def _take_mean(self, contexts: list[int]) -> float:
        """Leave the mean gradient where the optimizer looks for it; its squared norm."""
        # Each trainer's loss is scaled for DDP, which takes the mean over the trainers: the server must do the same.
        first, *others = (dist_autograd.get_gradients(context) for context in contexts)
        for parameter in self.module.parameters():
            total = sum((gradients[parameter] for gradients in others), first[parameter])
            parameter.grad = total / self._trainers
        return squared_norm(self.module)

    def update(self, step: int, scale: float, rate_factor: float) -> None:
        """Step the optimizer on the mean gradient times `scale`. All trainers ask the same; the first is obeyed."""
        with self._lock:
            if step == self._updated:
                return
            self._updated = step
            scale_gradients(self.module, scale)
            scale_rates(self._optimizer, rate_factor)
            self._optimizer.step()

    def parameters(self) -> list[rpc.RRef[nn.Parameter]]:
        """References to the weights, for torch's DistributedOptimizer."""
        return [rpc.RRef(parameter) for parameter in self.module.parameters()]

    def weights(self) -> dict[str, Tensor]:
        """The shard's weights by name, on the CPU."""
        return {name: value.cpu() for name, value in self.module.state_dict().items()}

    def save(self, step: int) -> CheckpointPart:
        """Write this shard's part of the checkpoint after `step`."""
        weights = {_WEIGHTS + name: value for name, value in self.module.state_dict().items()}
        tensors = weights | flatten_optimizer(self._optimizer)
        return runtime_context.current().checkpoints.save_part(step, self._name, tensors)

    def load(self, manifest: CheckpointManifest) -> None:
        """Go back to what `save` wrote."""
        tensors = runtime_context.current().checkpoints.load_part(manifest, self._name)
        weights = {key.removeprefix(_WEIGHTS): value for key, value in tensors.items() if key.startswith(_WEIGHTS)}
        self.module.load_state_dict(weights)
        restore_optimizer(self._optimizer, tensors)


def squared_norm(module: nn.Module) -> float:
    """The sum of the squares of all of a module's gradients."""
    norms = torch.stack([parameter.grad.norm() for parameter in module.parameters() if parameter.grad is not None])
    return float(norms.double().square().sum())


def scale_gradients(module: nn.Module, scale: float) -> None:
    """Multiply all of a module's gradients; by 1 leaves them as they are, to the bit."""
    for parameter in module.parameters():
        if parameter.grad is not None and scale != 1.0:
            parameter.grad.mul_(scale)


Reference = rpc.RRef[Hosted]


def device_type(hosted: Reference) -> str:
    """Called by trainers: where the shard computes, `cpu` or `cuda`."""
    return hosted.local_value().device.type


def vectors(hosted: Reference, rows: Tensor) -> Tensor:
    """Called by trainers; see `Hosted`."""
    return hosted.local_value().vectors(rows)


def logits(hosted: Reference, hidden: Tensor) -> Tensor:
    """Called by trainers; see `Hosted`."""
    return hosted.local_value().logits(hidden)


def loss_terms(hosted: Reference, hidden: Tensor, targets: Tensor) -> Tensor:
    """Called by trainers; see `Hosted`."""
    return hosted.local_value().loss_terms(hidden, targets)


@rpc.functions.async_execution
def gather(hosted: Reference, context_id: int, step: int, trainer: int) -> Future[float]:
    """Called by trainers; see `Hosted`."""
    return passed_on(hosted.local_value().gather(context_id, step, trainer))


def update(hosted: Reference, step: int, scale: float, rate_factor: float) -> None:
    """Called by trainers; see `Hosted`."""
    hosted.local_value().update(step, scale, rate_factor)


def parameters(hosted: Reference) -> list[rpc.RRef[nn.Parameter]]:
    """Called by trainers; see `Hosted`."""
    return hosted.local_value().parameters()


def weights(hosted: Reference) -> dict[str, Tensor]:
    """Called by the first trainer; see `Hosted`."""
    return hosted.local_value().weights()


def save(hosted: Reference, step: int) -> CheckpointPart:
    """Called by the first trainer; see `Hosted`."""
    return hosted.local_value().save(step)


def load(hosted: Reference, manifest: CheckpointManifest) -> None:
    """Called by the first trainer; see `Hosted`."""
    hosted.local_value().load(manifest)
