"""What a parameter server holds: some rows of a module, with their optimizer."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed.autograd as dist_autograd
from torch import Tensor, nn
from torch.distributed import rpc
from torch.futures import Future

from rolecall.kit.optimizers import OptimizerChoice, scale_gradients, scale_rates, squared_norm
from rolecall.kit.parameter_server.init import Draw, EmbeddingShard, Part
from rolecall.runtime.checkpoint import flatten_optimizer, restore_optimizer
from rolecall.runtime.context import current
from rolecall.runtime.remote import StepBarrier
from rolecall.spec.plan import CheckpointManifest, CheckpointPart

_WEIGHTS = "weights/"


@dataclass(frozen=True, slots=True)
class ShardedModule:
    """A module whose rows are divided over parameter servers. It travels to them by pickle, and so does `make`."""

    name: str
    """Names the module among those of the job, and its parts in checkpoints."""
    rows: int
    """The rows of all shards together; each of the module's parameters has one entry for each row of its shard."""
    make: Callable[[Part], nn.Module]
    """Makes one shard; called on its server."""
    optimizer: OptimizerChoice
    servers: Sequence[int]
    """The role ranks of the parameter servers that hold a shard each."""
    cpu: bool = False
    """Whether shards stay in the CPU's memory where their server has a GPU."""


def sharded_embedding(
    name: str,
    rows: int,
    *,
    dim: int,
    draw: Draw,
    optimizer: OptimizerChoice,
    servers: Sequence[int],
    dtype: torch.dtype = torch.float32,
    sparse: bool = True,
    cpu: bool = False,
) -> ShardedModule:
    """An embedding table of `rows` rows of length `dim`, for `ShardedEmbedding`."""
    make = partial(EmbeddingShard, dim=dim, draw=draw, dtype=dtype, sparse=sparse)
    return ShardedModule(name, rows, make, optimizer, servers, cpu=cpu)


class Shard:
    """One shard of a module and its optimizer, which steps on the mean of all trainers' gradients.

    A step is one call of every trainer, `apply`. Where gradients are clipped by their norm over all weights, local and
    remote, it is two: `gather` answers with this shard's share of the norm, and `update` steps by the scaled gradient.
    Synchronous shards wait for all trainers, and nobody gets an answer before; so the next step reads the new rows.
    Others apply each trainer's gradient when it comes.
    """

    def __init__(self, sharded: ShardedModule, part: Part, trainers: int, *, synchronous: bool) -> None:
        # Row numbers come from look-ups that were in range; to check them again would cost every step.
        torch.sparse.check_sparse_tensor_invariants.disable()
        self._name = f"{sharded.name}-{part.index}"
        self._trainers = trainers
        self._device = torch.device("cpu") if sharded.cpu else current().device
        self._module = sharded.make(part).to(self._device)
        self._optimizer = sharded.optimizer.build(self._module.parameters())
        contributors = trainers if synchronous else 1
        self._applying = StepBarrier(contributors, self._apply)
        self._gathering = StepBarrier(contributors, self._gather)
        self._lock = threading.Lock()
        self._updated: int | None = None

    def device_type(self) -> str:
        """Where the shard computes: `cpu` or `cuda`."""
        return self._device.type

    def compute(self, method: str, grad: bool, inputs: Sequence[Tensor]) -> Tensor:
        """What a method of the module makes of `inputs`, on the device from which they came: what crosses between two
        GPUs stays on GPUs.
        """
        with torch.set_grad_enabled(grad):
            answer: Tensor = getattr(self._module, method)(*(one.to(self._device) for one in inputs))
            return answer.to(inputs[0].device)

    def apply(self, context_id: int, step: int, trainer: int, rate_factor: float) -> Future[None]:
        """Take trainer `trainer`'s gradients of `step`; the future is done once they are applied."""
        return self._applying.join(step, trainer, (context_id, rate_factor))

    def gather(self, context_id: int, step: int, trainer: int) -> Future[float]:
        """Take trainer `trainer`'s gradients of `step`; the squared norm of all trainers' mean, once all are here."""
        return self._gathering.join(step, trainer, context_id)

    def update(self, step: int, scale: float, rate_factor: float) -> None:
        """Step on the gathered gradients times `scale`. All trainers ask the same; the first is obeyed."""
        with self._lock:
            if step == self._updated:
                return
            self._updated = step
            scale_gradients(self._module.parameters(), scale)
            self._step(rate_factor)

    def parameters(self) -> list[rpc.RRef[nn.Parameter]]:
        """References to the weights, for torch's DistributedOptimizer."""
        return [rpc.RRef(parameter) for parameter in self._module.parameters()]

    def block(self, parameter: str, start: int, stop: int) -> Tensor:
        """This shard's own rows [start, stop) of one parameter, on the CPU."""
        return self._module.get_parameter(parameter).detach()[start:stop].cpu()

    def save(self, step: int) -> CheckpointPart:
        """Write this shard's part of the checkpoint after `step`."""
        weights = {_WEIGHTS + name: value for name, value in self._module.state_dict().items()}
        return current().checkpoints.save_part(step, self._name, weights | flatten_optimizer(self._optimizer))

    def load(self, manifest: CheckpointManifest) -> None:
        """Go back to what `save` wrote."""
        tensors = current().checkpoints.load_part(manifest, self._name)
        weights = {key.removeprefix(_WEIGHTS): value for key, value in tensors.items() if key.startswith(_WEIGHTS)}
        self._module.load_state_dict(weights)
        restore_optimizer(self._optimizer, tensors)

    def _apply(self, contributions: list[tuple[int, float]]) -> None:
        self._take_mean([context_id for context_id, _ in contributions])
        self._step(contributions[0][1])

    def _gather(self, contexts: list[int]) -> float:
        self._take_mean(contexts)
        return squared_norm(self._module.parameters())

    def _take_mean(self, contexts: list[int]) -> None:
        """Leave the mean gradient where the optimizer looks for it."""
        # Each trainer's loss is scaled for DDP, which takes the mean over the trainers: the server must do the same.
        first, *others = (dist_autograd.get_gradients(context) for context in contexts)
        for parameter in self._module.parameters():
            mean = sum((gradients[parameter] for gradients in others), first[parameter]) / self._trainers
            parameter.grad = mean.coalesce() if mean.is_sparse else mean

    def _step(self, rate_factor: float) -> None:
        scale_rates(self._optimizer, rate_factor)
        self._optimizer.step()
