"""The trainers' view of the vocabulary on the parameter servers: two layers, and the shards behind them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn
from torch.distributed import rpc
from torch.futures import Future

from rolecall.kit.parameter_server.remote import look_up
from rolecall.runtime.context import worker_name
from rolecall.spec.plan import CheckpointManifest, CheckpointPart
from rolecall.spec.role import Role
from rolecall.workloads.rnn_lm import hosting
from rolecall.workloads.rnn_lm.hosting import Hosted
from rolecall.workloads.rnn_lm.params import Params
from rolecall.workloads.rnn_lm.placement import place
from rolecall.workloads.rnn_lm.vocabulary import Part, combine


@dataclass(frozen=True, slots=True)
class Shard:
    """A reference to one shard on its server."""

    hosted: rpc.RRef[Hosted]
    table: str
    part: Part

    def call(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Call one of `hosting`'s functions there."""
        return rpc.rpc_async(self.hosted.owner(), function, args=(self.hosted, *arguments))


def make_shards(params: Params, servers: int, vocabulary: int, trainers: int) -> list[Shard]:
    """Have the parameter servers make all shards of a vocabulary."""
    return [
        Shard(
            rpc.remote(
                worker_name(Role.PARAMETER_SERVER, holding.server),
                Hosted,
                args=(params, holding.table, holding.part, trainers),
            ),
            holding.table,
            holding.part,
        )
        for holding in place(servers, vocabulary)
    ]


class Shards:
    """All shards together, for what is asked of each."""

    def __init__(self, shards: Iterable[Shard]) -> None:
        self._shards = list(shards)

    def of(self, table: str) -> list[Shard]:
        """The shards of one table, in order."""
        return [shard for shard in self._shards if shard.table == table]

    def all_on(self, device_type: str) -> bool:
        """Whether every shard computes on this type of device."""
        return all(found == device_type for found in self._ask(hosting.device_type))

    def gather(self, context_id: int, step: int, trainer: int) -> list[Future[float]]:
        """Contribute this trainer's gradients; each shard's squared norm of the mean gradient."""
        return [shard.call(hosting.gather, context_id, step, trainer) for shard in self._shards]

    def update(self, step: int, scale: float, rate_factor: float) -> list[Future[None]]:
        """Step every shard's optimizer on the gradients that were gathered."""
        return [shard.call(hosting.update, step, scale, rate_factor) for shard in self._shards]

    def parameters(self) -> list[rpc.RRef[nn.Parameter]]:
        """References to all weights, for torch's DistributedOptimizer."""
        return [reference for found in self._ask(hosting.parameters) for reference in found]

    def save(self, step: int) -> list[CheckpointPart]:
        """Have every shard write its part of a checkpoint, all at the same time."""
        return self._ask(hosting.save, step)

    def load(self, manifest: CheckpointManifest) -> None:
        """Have every shard go back to `manifest`."""
        self._ask(hosting.load, manifest)

    def weights(self) -> dict[str, Tensor]:
        """The whole tables, as `embedding.weight`, `decoder.weight` and `decoder.bias`."""
        found = list(zip(self._shards, self._ask(hosting.weights), strict=True))
        whole: dict[str, Tensor] = {}
        for shard, weights in found:
            for name, rows in weights.items():
                table = whole.setdefault(f"{shard.table}.{name}", rows.new_empty((shard.part.rows, *rows.shape[1:])))
                table[shard.part.index :: shard.part.count] = rows
        return whole

    def _ask(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        return torch.futures.wait_all([shard.call(function, *arguments) for shard in self._shards])


class RemoteEmbedding:
    """Looks tokens up; each distinct token of a batch crosses the wire once."""

    def __init__(self, shards: list[Shard], wire: torch.device) -> None:
        self._shards = shards
        self._wire = wire

    def __call__(self, tokens: Tensor) -> Tensor:
        """The vectors [..., e] of tokens [...], on the wire's device."""
        return look_up(tokens, len(self._shards), self._ask)

    def _ask(self, shard: int, rows: Tensor) -> Future[Tensor]:
        return self._shards[shard].call(hosting.vectors, rows.to(self._wire))


class RemoteDecoder:
    """The loss of hidden states, by the decoder on the servers."""

    def __init__(self, shards: list[Shard], wire: torch.device, loss_at: Literal["server", "trainer"]) -> None:
        self._shards = shards
        self._wire = wire
        self._losses = self._at_servers if loss_at == "server" else self._here

    def losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """The cross-entropy [n], in nats, of hidden states [n, h] that should give the tokens [n]."""
        return self._losses(hidden.to(self._wire), targets.to(self._wire))

    def _at_servers(self, hidden: Tensor, targets: Tensor) -> Tensor:
        answers = [shard.call(hosting.loss_terms, hidden, targets) for shard in self._shards]
        return combine([answer.wait() for answer in answers])

    def _here(self, hidden: Tensor, targets: Tensor) -> Tensor:
        answers = [shard.call(hosting.logits, hidden) for shard in self._shards]
        sizes = torch.tensor([0, *(shard.part.size for shard in self._shards)])
        first = sizes.cumsum(0).to(targets.device)  # where each shard's logits begin
        count = len(self._shards)
        logits = torch.cat([answer.wait() for answer in answers], 1)
        places = first[targets % count] + targets // count
        return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), places, reduction="none")
