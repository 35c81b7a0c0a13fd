# pyright: standard, reportPrivateImportUsage=false
"""The training loop of trainers with some or all weights on parameter servers."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
from torch import Tensor, nn
from torch.futures import Future

from rolecall.kit.checkpoint import random_state, restore_random_state, strip_prefix
from rolecall.kit.loop import Batch, P, TrainingLoop
from rolecall.kit.optimizers import are_finite
from rolecall.kit.parameter_server.protocols import UpdateProtocol
from rolecall.kit.parameter_server.remote import Shards, Update
from rolecall.runtime.context import WorkerContext, worker_name
from rolecall.spec.plan import CheckpointManifest, CheckpointPart

_LOCAL = "local/"


class ShardedTrainingLoop(TrainingLoop[Batch, P]):
    """One trainer's share of a job. `local` has the layers that are replicated in every trainer.

    Subclasses define the losses of a batch; this class does steps and checkpoints.

    With `uses_stale_rows`, `losses` must use rows that `look_ahead` has requested. The servers then apply a step's
    gradients during the next forward pass. All gradients must be those of rows from `ShardedEmbedding` or
    `ShardedEmbeddingBag`, or of local weights, because there is no distributed autograd context.
    """

    def __init__(
        self,
        context: WorkerContext[P],
        shards: Shards,
        protocol: UpdateProtocol,
        local: nn.Module | None = None,
        *,
        uses_stale_rows: bool = False,
    ) -> None:
        super().__init__(context)
        self.shards = shards
        self.rank, self.world = context.role_rank, context.count(context.role)
        self._protocol = protocol
        self._needs_context = protocol.needs_context and not uses_stale_rows
        self._local = local or nn.Module()
        self._uses_stale_rows = uses_stale_rows
        self._applied: Sequence[Future[None]] = ()

    @abstractmethod
    def losses(self, batch: Batch) -> Tensor:
        """The loss [n] of each of this trainer's samples; n may be 0. Must call every shard."""

    def look_ahead(self, after: Update | None) -> None:
        """Request the missing rows of the batches that are prepared; called up to three times in a step.

        Pass `after` to `ShardedEmbedding.request`: servers reply after this trainer's last update. If it is None, all
        updates of this trainer are applied, and with synchronous shards those of all trainers.
        """

    def trainer_state(self) -> dict[str, Tensor]:
        """State of this trainer alone for checkpoints, besides the random state; empty by default."""
        return {}

    def restore_trainer_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore `trainer_state`; `tensors` also has other entries."""

    def run(self) -> dict[str, float] | None:
        """As `TrainingLoop.run`. The clock starts when the servers have the initial weights."""
        self.shards.wait()
        return super().run()

    def train_step(self, batch: Batch) -> Tensor | None:
        """One optimizer step of all trainers. Returns this trainer's mean loss, None without samples.

        DDP and the servers average gradients over the trainers. Each trainer therefore scales the sum of its losses by
        (trainers / samples of the global batch), so that the mean gradient is the global batch's for unequal shares,
        too.
        """
        timeline = self.context.timeline
        self._protocol.begin(self.position.step, self.rate_factor)
        with ExitStack() as stack:
            # Servers may use a context only until it ends here, which is before overlapping updates do.
            context_id = stack.enter_context(dist_autograd.context()) if self._needs_context else None
            if all(one.done() for one in self._applied):
                self.look_ahead(None)
            with timeline.span("forward"):
                losses = self.losses(batch)
            self.settle()
            self.look_ahead(None)
            with timeline.span("backward"):
                loss = losses.sum() * (self.world / self.samples(batch))
                if context_id is None:
                    self._local.zero_grad()
                    loss.backward()
                else:
                    dist_autograd.backward(context_id, [loss])
            with timeline.span("apply", "communication"):
                self._applied = self._protocol.apply(context_id, self.position.step, self.rate_factor)
                self.shards.require_sent()
            with timeline.span("data", "data"):
                self.prepare_next()  # The servers compute, and this process would wait.
            if self._protocol.last_update is not None:
                self.look_ahead(self._protocol.last_update)
            if not self._uses_stale_rows:
                self.settle()
        return losses.detach().mean() if len(losses) else None

    def settle(self) -> None:
        """Wait until the servers have applied the gradients of all steps."""
        if self._applied:
            with self.context.timeline.span("wait", "wait"):
                torch.futures.wait_all(list(self._applied))
            self._applied = ()

    def has_finite_weights(self) -> bool:
        """As of `TrainingLoop`; the first trainer asks the servers, too."""
        dist.barrier()  # The servers must have applied the updates of all trainers.
        return self.rank > 0 or (are_finite(self._local.parameters()) and self.shards.have_finite_weights())

    @torch.no_grad()
    def mean_loss(self, batches: Iterable[Batch]) -> float:
        """The mean of `losses` over all trainers' shares of these batches; a collective of all trainers."""
        total = torch.zeros(2, dtype=torch.float64)
        for batch in batches:
            losses = self.losses(batch).double()
            total += torch.stack([losses.sum().cpu(), torch.tensor(float(len(losses)), dtype=torch.float64)])
        dist.all_reduce(total)
        return float(total[0] / total[1])

    def save_parts(self, step: int) -> Sequence[CheckpointPart]:
        """This trainer's part; on the first trainer also the servers' parts, which they write concurrently."""
        from_servers = self.shards.save(step) if self.rank == 0 else []
        tensors = random_state(self.context.device) | self.trainer_state()
        if self.rank == 0:  # Local layers and their optimizer are replicated.
            tensors |= {_LOCAL + name: value for name, value in self._local.state_dict().items()}
            tensors |= self._protocol.state()
        own = self.context.checkpoints.save_part(step, self._part_name(self.rank), tensors)
        return [own, *torch.futures.wait_all(from_servers)]

    def load(self, manifest: CheckpointManifest) -> None:
        """Restore `manifest` on all trainers and servers; called on all trainers."""
        if self.rank == 0:
            self.shards.load(manifest)
        own = self.context.checkpoints.load_part(manifest, self._part_name(self.rank))
        restore_random_state(own, self.context.device)
        self.restore_trainer_state(own)
        shared = self.context.checkpoints.load_part(manifest, self._part_name(0))
        self._local.load_state_dict(strip_prefix(shared, _LOCAL))
        self._protocol.restore(shared)
        dist.barrier()  # No trainer may look up rows before the servers are restored.

    def _part_name(self, rank: int) -> str:
        return worker_name(self.context.role, rank)


def make_local(context: WorkerContext[Any], make: Callable[[], nn.Module], dtype: torch.dtype) -> nn.Module:
    """Replicated layers on the context's device: equal initial weights in all trainers, but different dropout masks."""
    torch.manual_seed(context.params.seed)
    local = make().to(context.device, dtype)
    torch.manual_seed(context.params.seed + 1 + context.role_rank)
    return local
