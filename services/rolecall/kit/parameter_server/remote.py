# pyright: standard
"""The trainers' side of sharded modules: references, RPC calls and `ShardedEmbedding`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed import rpc
from torch.distributed.rpc.constants import UNSET_RPC_TIMEOUT
from torch.futures import Future

from rolecall.kit.parameter_server.initialization import ShardSpec
from rolecall.kit.parameter_server.lookup import (
    DistinctRows,
    Reply,
    RequestedRows,
    distinct_rows,
    hand_over,
    request_rows,
)
from rolecall.kit.parameter_server.rows import RowGradient
from rolecall.kit.parameter_server.shard import Contribution, Shard, ShardedModule
from rolecall.runtime.context import WorkerContext, span, worker_name
from rolecall.runtime.remote import Mailbox, call
from rolecall.runtime.shared_memory import shared
from rolecall.spec.plan import CheckpointManifest, CheckpointPart
from rolecall.spec.role import Role

_READ_ROWS = 16_384
"""Rows of a shard in a block for the export. The server needs memory for several blocks."""


class Update(NamedTuple):
    """An update of the weights on the servers."""

    step: int
    trainer: int
    """The rank of the trainer whose gradients it has; of a synchronous shard, those of the others, too."""


@dataclass(frozen=True, slots=True)
class ShardReference:
    """A reference to one shard on its server, and this trainer's gradients for it."""

    shard: rpc.RRef[Shard]
    module: str
    spec: ShardSpec
    gradients: list[RowGradient] = field(default_factory=list[RowGradient])
    """Of rows that were pulled, from the backward pass until they are sent."""
    transfer_dtype: torch.dtype | None = None
    """As of its `ShardedModule`."""
    synchronous: bool = True
    """As of its `Shard`."""
    pulls: list[Future[Tensor]] = field(default_factory=list[Future[Tensor]])
    """Of a synchronous shard: replies to be differentiated that can be outstanding."""

    def pull(self, rows: Tensor, offsets: Tensor | None = None, *, after: Update | None = None) -> Reply:
        """The vectors [n, dim] of local row numbers [n] of an `EmbeddingShard`; with offsets [b], the sums [b, dim] of
        bags. With a transfer data type, they are float32. The backward pass keeps the gradient here, for the next
        update. With `after`, they are those after this update of the shard.

        Raises `ValueError` for row numbers on a GPU with `after`."""
        if after is not None and rows.is_cuda:
            raise ValueError("replies that wait for an update can't be on a GPU; request these rows after the update")
        inputs, method = ((rows,), "forward") if offsets is None else ((rows, offsets), "pool")
        if after is None:
            vectors = self.call(Shard.pull, method, inputs)
        else:
            vectors = self.join(Shard.pull_after, *after, method, inputs)
        differentiable = torch.is_grad_enabled()
        if differentiable and self.synchronous:
            self.pulls.append(vectors)
        return _Pulled(vectors, self, rows, offsets, differentiable)

    def contribution(self, context_id: int | None) -> Contribution:
        """This trainer's gradients for the shard. They are those of pulled rows, or else of a distributed autograd
        context. Waits for the replies to all pulls of a synchronous shard, so that they always have the rows before the
        update."""
        with span("look-up", "communication"):
            torch.futures.wait_all(self.pulls)
        self.pulls.clear()
        if not self.gradients and context_id is not None:
            return context_id
        gradients = tuple(self.gradients)
        self.gradients.clear()
        return gradients

    def compute(self, method: str, *inputs: Tensor) -> Future[Tensor]:
        """Call a method of the shard's module; differentiable in a distributed autograd context."""
        return self.call(Shard.compute, method, torch.is_grad_enabled(), inputs)

    def call(self, method: Callable[..., Any], *arguments: Any, timeout: float = UNSET_RPC_TIMEOUT) -> Future[Any]:
        """Call a method of `Shard`. A timeout of 0 is none, for work that takes as long as the table is large."""
        own_name, to = rpc.get_worker_info().name, self.shard.owner()
        return call(to, _call_remote, own_name, self.shard, method.__name__, arguments, timeout=timeout)

    def join(self, method: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Call a method of `Shard` that waits for trainers, without blocking a thread on the server."""
        own_name = rpc.get_worker_info().name
        return call(self.shard.owner(), _join_remote, own_name, self.shard, method.__name__, arguments)


@dataclass(frozen=True, slots=True)
class _Pulled:
    """The reply to `ShardReference.pull`, whose gradient the shard's reference keeps."""

    vectors: Future[Tensor]
    shard: ShardReference
    rows: Tensor
    offsets: Tensor | None
    differentiable: bool

    def wait(self) -> Tensor:
        vectors = self.vectors.wait()
        if self.shard.transfer_dtype is not None:
            vectors = vectors.float()
        return hand_over(vectors, self._keep) if self.differentiable else vectors

    def _keep(self, gradient: Tensor) -> None:
        values = gradient.to(self.shard.transfer_dtype or gradient.dtype)
        self.shard.gradients.append(RowGradient(self.rows, values, self.offsets))


# Instead of `RRef.rpc_async`, which copies the answer to a future without devices: it can't hold tensors of a GPU. A
# look-up takes 3 % longer with it.
def _call_remote(caller: str, shard: rpc.RRef[Shard], method: str, arguments: Sequence[Any]) -> Any:
    return shared(getattr(shard.local_value(), method)(*arguments), caller)


@rpc.functions.async_execution
def _join_remote(caller: str, shard: rpc.RRef[Shard], method: str, arguments: Sequence[Any]) -> Future[Any]:
    joined: Future[Any] = getattr(shard.local_value(), method)(*arguments)
    return joined.then(lambda done: shared(done.wait(), caller))  # As `passed_on`: errors remain errors.


class Shards:
    """All shards of a job's modules; picklable, so that one worker can create them for all."""

    def __init__(self, shards: Sequence[ShardReference]) -> None:
        self._shards = list(shards)

    def of(self, module: str) -> list[ShardReference]:
        """The shards of one module, in order."""
        return [shard for shard in self._shards if shard.module == module]

    def transfer_device(self, device: torch.device) -> torch.device:
        """The device of tensors that a trainer on `device` sends: its GPU if all shards are on GPUs, else the CPU."""
        on_gpus = device.type == "cuda" and all(found == "cuda" for found in self._call_all(Shard.device_type))
        return device if on_gpus else torch.device("cpu")

    def apply(self, context_id: int | None, step: int, trainer: int, rate_factor: float) -> list[Future[None]]:
        """Send this trainer's gradients to every shard, which applies them."""
        return [
            shard.join(Shard.apply, shard.contribution(context_id), step, trainer, rate_factor)
            for shard in self._shards
        ]

    def gather(self, context_id: int | None, step: int, trainer: int) -> list[Future[float]]:
        """Send this trainer's gradients. Returns each shard's squared norm of the mean gradient."""
        return [shard.join(Shard.gather, shard.contribution(context_id), step, trainer) for shard in self._shards]

    def update(self, step: int, scale: float, rate_factor: float) -> list[Future[None]]:
        """Step every shard's optimizer on the gathered gradients, times `scale`."""
        return [shard.call(Shard.update, step, scale, rate_factor) for shard in self._shards]

    def require_sent(self) -> None:
        """Raises `RuntimeError` if there are gradients of pulled rows that the update protocol did not send."""
        for shard in self._shards:
            if shard.gradients:
                raise RuntimeError(
                    f"the update protocol did not send the gradients of {shard.module!r}; use `ServerOptimizers` with "
                    "`ShardedEmbedding`, or look up rows with `ShardReference.compute`"
                )

    def wait(self) -> None:
        """Returns when all shards exist with their initial values; raises the error of a constructor."""
        self._call_all(Shard.device_type)

    def modules(self, name: str) -> list[rpc.RRef[Any]]:
        """References to the shards' modules of one module, in order."""
        return torch.futures.wait_all([shard.call(Shard.module, timeout=0) for shard in self.of(name)])

    def have_finite_weights(self) -> bool:
        """False if a weight of a shard is NaN or infinite."""
        return all(self._call_all(Shard.has_finite_weights))

    def save(self, step: int) -> list[Future[CheckpointPart]]:
        return [shard.call(Shard.save, step, timeout=0) for shard in self._shards]

    def load(self, manifest: CheckpointManifest) -> None:
        self._call_all(Shard.load, manifest)

    def blocks(self, module: str, parameter: str) -> Iterator[Tensor]:
        """All rows of one parameter of a module in order, on the CPU, in blocks [b, ...] that fit in memory."""
        shards = self.of(module)
        for start in range(0, max(shard.spec.size for shard in shards), _READ_ROWS):
            futures = [shard.call(Shard.block, parameter, start, start + _READ_ROWS, timeout=0) for shard in shards]
            parts = torch.futures.wait_all(futures)
            whole = parts[0].new_empty((sum(map(len, parts)), *parts[0].shape[1:]))
            for index, part in enumerate(parts):
                whole[index :: len(parts)] = part
            yield whole

    def _call_all(self, method: Callable[..., Any], *arguments: Any) -> list[Any]:
        return torch.futures.wait_all([shard.call(method, *arguments, timeout=0) for shard in self._shards])


def make_shards(modules: Sequence[ShardedModule], trainers: int, *, synchronous: bool = True) -> Shards:
    """Create all shards on the parameter servers. The first call of a shard raises an error of its constructor."""
    references: list[ShardReference] = []
    for module in modules:
        for index, server in enumerate(module.servers):
            spec = ShardSpec(index, len(module.servers), module.rows)
            arguments = (module, spec, trainers)
            name = worker_name(Role.PARAMETER_SERVER, server)
            shard = rpc.remote(name, Shard, args=arguments, kwargs={"synchronous": synchronous}, timeout=0)
            references.append(
                ShardReference(shard, module.name, spec, transfer_dtype=module.transfer_dtype, synchronous=synchronous)
            )
    return Shards(references)


_shared: Mailbox[Shards, Shards] = Mailbox()


def share_shards(context: WorkerContext[Any], modules: Sequence[ShardedModule], *, synchronous: bool = True) -> Shards:
    """Create all shards in a job without a driver; called once by every trainer.

    The first trainer creates the shards and sends the references to the others.
    """
    if context.role_rank > 0:
        return _shared.answer_one(lambda shards: shards)
    shards = make_shards(modules, context.count(context.role), synchronous=synchronous)
    others = [worker_name(context.role, rank) for rank in range(1, context.count(context.role))]
    torch.futures.wait_all([call(name, _receive, shards) for name in others])
    return shards


@rpc.functions.async_execution
def _receive(shards: Shards) -> Future[Shards]:
    return _shared.post(shards)


class ShardedEmbedding(nn.Module):
    """An embedding table on servers. Each distinct id of a batch is sent once, to the server that has its row."""

    def __init__(self, shards: Sequence[ShardReference], transfer_device: torch.device | None = None) -> None:
        super().__init__()
        self._shards = shards
        self._transfer_device = transfer_device or torch.device("cpu")

    def forward(self, ids: Tensor) -> Tensor:
        """The vectors [..., dim] of the ids [...], on the transfer device."""
        return self.look_up(self.prepare(ids))

    def prepare(self, ids: Tensor) -> DistinctRows:
        """The distinct rows of the ids [...], for `look_up`; can be computed ahead."""
        return distinct_rows(ids.cpu(), len(self._shards))

    def look_up(self, wanted: DistinctRows) -> Tensor:
        """As `forward`, for ids that are prepared."""
        return self.request(wanted).expand()

    def request(self, wanted: DistinctRows, *, after: Update | None = None) -> RequestedRows:
        """Begin the look-up of ids that are prepared. With `after`, the vectors are those after this update, and
        transfers must be on the CPU."""
        device = self._transfer_device
        return request_rows(wanted, lambda shard, rows: self._shards[shard].pull(rows.to(device), after=after))
