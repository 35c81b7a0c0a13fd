"""The parameter servers' side of sharded modules: shards and their optimizers, and the `run` of a server."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast, runtime_checkable

import torch
import torch.distributed.autograd as dist_autograd
from torch import Tensor, nn
from torch.distributed import rpc
from torch.futures import Future

from rolecall.kit.checkpoint import flatten_optimizer, restore_optimizer, strip_prefix
from rolecall.kit.optimizers import OptimizerChoice, are_finite, scale_gradients, scale_rates, squared_norm
from rolecall.kit.parameter_server.initialization import EmbeddingShard, Initializer, ShardSpec
from rolecall.kit.parameter_server.rows import RowGradient, mean_rows, step, step_on_mean, steps_on_rows
from rolecall.runtime.context import WorkerContext, current, span
from rolecall.runtime.measuring import measurements
from rolecall.runtime.remote import StepBarrier
from rolecall.spec import metric
from rolecall.spec.errors import Stopped
from rolecall.spec.plan import CheckpointManifest, CheckpointPart

_WEIGHTS = "weights/"
Contribution = tuple[RowGradient, ...] | Tensor | int
"""A trainer's gradients of a step: of rows of the parameter `weight`, those of a distributed autograd context, or what
a module with `ComputedGradients` computes them from."""


@runtime_checkable
class ComputedGradients(Protocol):
    """A module that computes the gradients of its parameters itself, without autograd."""

    def set_gradients(self, received: Sequence[Tensor]) -> None:
        """Set `grad` of each parameter to the mean over the trainers; `received` is in the order of their ranks."""
        ...


@dataclass(frozen=True, slots=True)
class ShardedModule:
    """A module whose rows are sharded over parameter servers. It is pickled, including `make`."""

    name: str
    """The name of the module in the job, and of its parts in checkpoints."""
    rows: int
    """Total rows of all shards. The first dimension of each parameter of a shard is the shard's rows."""
    make: Callable[[ShardSpec], nn.Module]
    """Builds one shard; called on its server."""
    optimizer: OptimizerChoice
    servers: Sequence[int]
    """The role ranks of the parameter servers, one for each shard."""
    transfer_dtype: torch.dtype | None = None
    """The data type in which vectors and gradients of rows are sent; by default that of the weights."""


def sharded_embedding(
    name: str,
    rows: int,
    *,
    dim: int,
    initializer: Initializer,
    optimizer: OptimizerChoice,
    servers: Sequence[int],
    dtype: torch.dtype = torch.float32,
    sparse: bool = True,
    transfer_dtype: torch.dtype | None = None,
) -> ShardedModule:
    """An embedding table [rows, dim] for `ShardedEmbedding`."""
    make = partial(EmbeddingShard, dim=dim, initializer=initializer, dtype=dtype, sparse=sparse)
    return ShardedModule(name, rows, make, optimizer, servers, transfer_dtype)


class Shard:
    """One shard of a module and its optimizer, which steps on the mean of all trainers' gradients.

    In a step every trainer calls `apply`. To clip gradients by their norm over all weights, local and remote, it calls
    `gather`, which returns the shard's squared norm, then `update`, which steps on the scaled gradient. Synchronous
    shards reply after all trainers have called, so the next step reads the new rows. Asynchronous shards apply each
    trainer's gradient on arrival.
    """

    def __init__(self, sharded: ShardedModule, spec: ShardSpec, trainers: int, *, synchronous: bool) -> None:
        # Row numbers come from look-ups, which checked the range; a second check would slow down every step.
        torch.sparse.check_sparse_tensor_invariants.disable()
        self._name = f"{sharded.name}-{spec.index}"
        self._trainers = trainers
        self._transfer_dtype = sharded.transfer_dtype
        self._device = current().device
        self._module = sharded.make(spec).to(self._device)
        self._optimizer = sharded.optimizer.build(self._module.parameters())
        contributors = trainers if synchronous else 1
        self._applying = StepBarrier(contributors, self._apply)
        self._gathering = StepBarrier(contributors, self._gather)
        self._lock = threading.Lock()
        self._updated: int | None = None
        measurements.add(metric.TABLE_BYTES, sum(one.nbytes for one in self._module.parameters()))

    def device_type(self) -> str:
        """The type of the shard's device: `cpu` or `cuda`."""
        return self._device.type

    def compute(self, method: str, grad: bool, inputs: Sequence[Tensor], *arguments: int) -> Tensor:
        """Call a method of the module; the result is on the device of `inputs`, so that GPU tensors stay on GPUs."""
        if self._device.type == "cuda":
            # A call with tensors on a GPU runs on a stream of its own. Weights change on the default stream.
            torch.cuda.current_stream(self._device).wait_stream(torch.cuda.default_stream(self._device))
        measurements.add(metric.SERVED_CALLS)
        measurements.add(metric.SERVED_ROWS, len(inputs[0]))
        with span(method), measurements.timed(metric.SERVED_SECONDS), torch.set_grad_enabled(grad):
            output: Tensor = getattr(self._module, method)(*(one.to(self._device) for one in inputs), *arguments)
            return output.to(inputs[0].device)

    def pull(self, method: str, inputs: Sequence[Tensor]) -> Tensor:
        """As `compute` without gradients, in the data type of transfers."""
        vectors = self.compute(method, False, inputs)
        return vectors.to(self._transfer_dtype or vectors.dtype)

    def pull_after(self, step: int, trainer: int, method: str, inputs: Sequence[Tensor]) -> Future[Tensor]:
        """As `pull`, after the update of `step` with the gradients of `trainer`, which may arrive later than this call.
        The shard replies at once when they are applied."""

        pulled: Future[Tensor] = Future()

        def pull(applied: Future[None]) -> None:
            try:
                applied.wait()  # Raises the error of the update.
                pulled.set_result(self.pull(method, inputs))
            except Exception as error:  # noqa: BLE001 - the trainer gets it
                pulled.set_exception(error)  # pyright: ignore[reportArgumentType] - torch's hint is that of results

        def begin(applied: Future[None]) -> None:
            # In another thread: the update completes the futures of all trainers in its own, one after the other.
            try:
                _pulling.submit(pull, applied)
            except RuntimeError as error:  # The process ends.
                pulled.set_exception(error)  # pyright: ignore[reportArgumentType] - as above

        self._applying.after(step, trainer).add_done_callback(begin)
        return pulled

    def apply(self, contribution: Contribution, step: int, trainer: int, rate_factor: float) -> Future[None]:
        """Receive trainer `trainer`'s gradients of `step`; the future completes after they are applied."""
        return self._applying.join(step, trainer, (self._received(contribution), rate_factor))

    def gather(self, contribution: Contribution, step: int, trainer: int) -> Future[float]:
        """Receive trainer `trainer`'s gradients of `step`; the squared norm of the mean of all trainers' gradients."""
        return self._gathering.join(step, trainer, self._received(contribution))

    def update(self, step: int, scale: float, rate_factor: float) -> None:
        """Step on the gathered gradients times `scale`. All trainers send the same request; the first one counts."""
        with self._lock:
            if step == self._updated:
                return
            self._updated = step
            with span("apply"), measurements.timed(metric.UPDATE_SECONDS):
                scale_gradients(self._module.parameters(), scale)
                scale_rates(self._optimizer, rate_factor)
                self._step()
            measurements.add(metric.UPDATES)

    def module(self) -> rpc.RRef[nn.Module]:
        """A reference to the module itself, as `rpc.remote` returns it in the PyTorch tutorials."""
        return rpc.RRef(self._module)

    def block(self, parameter: str, start: int, stop: int) -> Tensor:
        """Local rows [start, stop) of one parameter, on the CPU."""
        return self._module.get_parameter(parameter).detach()[start:stop].cpu()

    def has_finite_weights(self) -> bool:
        """False if a weight is NaN or infinite."""
        return are_finite(self._module.parameters())

    def save(self, step: int) -> CheckpointPart:
        """Write this shard's part of the checkpoint of `step`."""
        weights = {_WEIGHTS + name: value for name, value in self._module.state_dict().items()}
        return current().checkpoints.save_part(step, self._name, weights | flatten_optimizer(self._optimizer))

    def load(self, manifest: CheckpointManifest) -> None:
        tensors = current().checkpoints.load_part(manifest, self._name)
        self._module.load_state_dict(strip_prefix(tensors, _WEIGHTS))
        restore_optimizer(self._optimizer, tensors)

    def _received(self, contribution: Contribution) -> Contribution:
        if isinstance(contribution, int):
            return contribution
        if isinstance(contribution, Tensor):
            on_device = contribution.to(self._device)
        else:
            dtype = self._module.get_parameter("weight").dtype if contribution else None
            on_device = tuple(one.to(self._device, dtype) for one in contribution)
        if self._device.type == "cuda":
            # Another thread, with another stream, uses them.
            torch.cuda.current_stream(self._device).synchronize()
        return on_device

    def _apply(self, received: list[tuple[Contribution, float]]) -> None:
        contributions, rate_factor = [contribution for contribution, _ in received], received[0][1]
        with span("apply"), measurements.timed(metric.UPDATE_SECONDS):
            scale_rates(self._optimizer, rate_factor)
            if not self._step_on_rows(_row_gradients(contributions)):
                self._average_gradients(contributions)
                self._step()
        measurements.add(metric.UPDATES)

    def _gather(self, received: list[Contribution]) -> float:
        with span("push"), measurements.timed(metric.UPDATE_SECONDS):
            self._average_gradients(received)
        return squared_norm(self._module.parameters())

    def _average_gradients(self, received: list[Contribution]) -> None:
        """Set `grad` to the mean over the trainers, as DDP does: each trainer's loss is scaled for that."""
        if isinstance(self._module, ComputedGradients):
            with torch.no_grad():
                self._module.set_gradients(cast(Sequence[Tensor], received))
            return
        contexts = [one for one in received if isinstance(one, int)]
        if contexts:
            self._average_contexts(contexts)
        else:
            self._average_rows(_row_gradients(received))

    def _average_contexts(self, contexts: list[int]) -> None:
        first, *others = (dist_autograd.get_gradients(context) for context in contexts)
        for parameter in self._module.parameters():
            mean = sum((gradients[parameter] for gradients in others), first[parameter]) / self._trainers
            parameter.grad = mean.coalesce() if mean.is_sparse else mean

    def _average_rows(self, gradients: list[RowGradient]) -> None:
        weight = self._module.get_parameter("weight")
        mean = mean_rows(gradients, self._trainers)
        sparse = torch.sparse_coo_tensor(  # pyright: ignore[reportUnknownMemberType] - torch's own types
            mean.rows.unsqueeze(0), mean.values, weight.shape, is_coalesced=True
        )
        weight.grad = sparse if steps_on_rows(self._optimizer) else sparse.to_dense()

    def _step_on_rows(self, gradients: list[RowGradient]) -> bool:
        """Step on gradients of rows at once, without their mean in memory. Returns False if there is no such step."""
        if not gradients:
            return False
        return step_on_mean(self._optimizer, self._module.get_parameter("weight"), gradients, self._trainers)

    def _step(self) -> None:
        """Step on `grad` of the parameters, and release it."""
        step(self._optimizer)
        if self._device.type == "cuda":
            # The trainers release their gradients, which are memory of other streams, after the reply.
            torch.cuda.current_stream(self._device).synchronize()
        for parameter in self._module.parameters():
            # Release the gradients of rows, so that the next message can use their memory.
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = None


def _row_gradients(received: Sequence[Contribution]) -> list[RowGradient]:
    return [one for given in received if isinstance(given, tuple) for one in given]


def serve(context: WorkerContext[Any]) -> None:
    """Returns at once, because RPC threads create the shards and serve calls; raises `Stopped` after a stop request.

    Leaving the gang waits for all other workers, so the process serves until they are done. If they stop on request,
    leaving raises `Stopped`.
    """
    if context.stop_requested():
        raise Stopped("stopped before the training started, as requested")


_pulling = ThreadPoolExecutor(thread_name_prefix="pull")
"""Its threads start when first needed, and never before a process forks."""
