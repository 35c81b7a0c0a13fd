"""The trainers' view of what lies on parameter servers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn
from torch.distributed import rpc
from torch.futures import Future

from rolecall.kit.parameter_server.init import BLOCK_ROWS, Part
from rolecall.kit.parameter_server.shard import Shard, ShardedModule
from rolecall.runtime.context import WorkerContext, worker_name
from rolecall.runtime.remote import Mailbox, passed_on
from rolecall.spec.plan import CheckpointManifest, CheckpointPart
from rolecall.spec.role import Role


@dataclass(frozen=True, slots=True)
class ShardReference:
    """A reference to one shard on its server."""

    shard: rpc.RRef[Shard]
    module: str
    part: Part

    def compute(self, method: str, *inputs: Tensor) -> Future[Tensor]:
        """What a method of the shard's module makes of `inputs`; differentiable in a distributed autograd context."""
        return self.call(Shard.compute, method, torch.is_grad_enabled(), inputs)

    def call(self, method: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Call a method of `Shard`."""
        return rpc.rpc_async(self.shard.owner(), _call, args=(self.shard, method.__name__, arguments))

    def join(self, method: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Call a method of `Shard` that waits for other trainers; on the server no thread waits with it."""
        return rpc.rpc_async(self.shard.owner(), _join, args=(self.shard, method.__name__, arguments))


def _call(shard: rpc.RRef[Shard], method: str, arguments: Sequence[Any]) -> Any:
    return getattr(shard.local_value(), method)(*arguments)


@rpc.functions.async_execution
def _join(shard: rpc.RRef[Shard], method: str, arguments: Sequence[Any]) -> Future[Any]:
    return passed_on(getattr(shard.local_value(), method)(*arguments))


class Shards:
    """All shards of a job's modules, for what is asked of each. May be sent to other workers by RPC."""

    def __init__(self, shards: Sequence[ShardReference]) -> None:
        self._shards = list(shards)

    def of(self, module: str) -> list[ShardReference]:
        """The shards of one module, in order."""
        return [shard for shard in self._shards if shard.module == module]

    def wire(self, device: torch.device) -> torch.device:
        """Where tensors must lie that a trainer on `device` sends: on its GPU if all shards compute on one too."""
        on_gpus = device.type == "cuda" and all(found == "cuda" for found in self._ask(Shard.device_type))
        return device if on_gpus else torch.device("cpu")

    def apply(self, context_id: int, step: int, trainer: int, rate_factor: float) -> list[Future[None]]:
        """Contribute this trainer's gradients, which every shard applies."""
        return [shard.join(Shard.apply, context_id, step, trainer, rate_factor) for shard in self._shards]

    def gather(self, context_id: int, step: int, trainer: int) -> list[Future[float]]:
        """Contribute this trainer's gradients; each shard's squared norm of the mean gradient."""
        return [shard.join(Shard.gather, context_id, step, trainer) for shard in self._shards]

    def update(self, step: int, scale: float, rate_factor: float) -> list[Future[None]]:
        """Step every shard's optimizer on the gradients that were gathered, times `scale`."""
        return [shard.call(Shard.update, step, scale, rate_factor) for shard in self._shards]

    def parameters(self) -> list[rpc.RRef[nn.Parameter]]:
        """References to all weights, for torch's DistributedOptimizer."""
        return [reference for found in self._ask(Shard.parameters) for reference in found]

    def save(self, step: int) -> list[Future[CheckpointPart]]:
        """Have every shard write its part of a checkpoint, all at the same time."""
        return [shard.call(Shard.save, step) for shard in self._shards]

    def load(self, manifest: CheckpointManifest) -> None:
        """Have every shard go back to `manifest`."""
        self._ask(Shard.load, manifest)

    def blocks(self, module: str, parameter: str) -> Iterator[Tensor]:
        """The rows of one parameter of a whole module in order, on the CPU, in blocks [b, ...] that fit in memory."""
        shards = self.of(module)
        for start in range(0, max(shard.part.size for shard in shards), BLOCK_ROWS):
            asked = [shard.call(Shard.block, parameter, start, start + BLOCK_ROWS) for shard in shards]
            parts = torch.futures.wait_all(asked)
            whole = parts[0].new_empty((sum(map(len, parts)), *parts[0].shape[1:]))
            for index, part in enumerate(parts):
                whole[index :: len(parts)] = part
            yield whole

    def _ask(self, method: Callable[..., Any], *arguments: Any) -> list[Any]:
        return torch.futures.wait_all([shard.call(method, *arguments) for shard in self._shards])


def make_shards(modules: Sequence[ShardedModule], trainers: int, *, synchronous: bool = True) -> Shards:
    """Have the parameter servers make all shards. What fails there, the first call of the shard raises."""
    return Shards(
        [
            ShardReference(_remote(module, index, trainers, synchronous), module.name, _part(module, index))
            for module in modules
            for index in range(len(module.servers))
        ]
    )


def _part(module: ShardedModule, index: int) -> Part:
    return Part(index, len(module.servers), module.rows)


def _remote(module: ShardedModule, index: int, trainers: int, synchronous: bool) -> rpc.RRef[Shard]:
    server = worker_name(Role.PARAMETER_SERVER, module.servers[index])
    return rpc.remote(server, Shard, args=(module, _part(module, index), trainers), kwargs={"synchronous": synchronous})


_shared: Mailbox[Shards, Shards] = Mailbox()


def share_shards(context: WorkerContext[Any], modules: Sequence[ShardedModule], *, synchronous: bool = True) -> Shards:
    """Called once by every trainer of a job without a driver: the first makes the shards and sends all others the
    references.
    """
    if context.role_rank > 0:
        return _shared.serve(lambda shards: shards)
    shards = make_shards(modules, context.count(context.role), synchronous=synchronous)
    others = [worker_name(context.role, rank) for rank in range(1, context.count(context.role))]
    torch.futures.wait_all([rpc.rpc_async(name, _receive, args=(shards,)) for name in others])
    return shards


@rpc.functions.async_execution
def _receive(shards: Shards) -> Future[Shards]:
    return _shared.post(shards)


class ShardedEmbedding(nn.Module):
    """An embedding table on servers. Each distinct id of a batch crosses the wire once, to the server of its row."""

    def __init__(self, shards: Sequence[ShardReference], wire: torch.device | None = None) -> None:
        super().__init__()
        self._shards = shards
        self._wire = wire or torch.device("cpu")

    def forward(self, ids: Tensor) -> Tensor:
        """The vectors [..., dim] of the ids [...], on the wire's device."""
        return look_up(ids, len(self._shards), self._ask)

    def _ask(self, shard: int, rows: Tensor) -> Future[Tensor]:
        return self._shards[shard].compute("forward", rows.to(self._wire))


def look_up(ids: Tensor, count: int, ask: Callable[[int, Tensor], Future[Tensor]]) -> Tensor:
    """The vectors [..., dim] of the ids [...] in a table of `count` shards; on the device of the shards' answers.

    `ask(shard, rows)` gives the vectors of a shard's own row numbers. A shard without a row among them is asked all the
    same: its optimizer must count the step.
    """
    distinct, inverse = torch.unique(ids, return_inverse=True)
    owners = distinct % count
    by_owner = torch.argsort(owners, stable=True)
    sizes = torch.bincount(owners, minlength=count).tolist()
    wanted = (distinct[by_owner] // count).split(sizes)
    answers = [ask(shard, rows) for shard, rows in enumerate(wanted)]
    vectors = torch.cat([answer.wait() for answer in answers])
    place = torch.empty_like(by_owner)
    place[by_owner] = torch.arange(len(by_owner))
    return F.embedding(place[inverse].to(vectors.device), vectors)
