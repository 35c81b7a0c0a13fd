"""What one trainer does in a step, an evaluation and a checkpoint; all trainers run the loop in step."""

from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch.nn.parallel import DistributedDataParallel

from rolecall.kit.loop import Held, TrainingLoop
from rolecall.kit.parameter_server.protocols import UpdateProtocol
from rolecall.kit.precision import weight_dtype
from rolecall.runtime.checkpoint import random_state, restore_random_state
from rolecall.runtime.context import WorkerContext, worker_name
from rolecall.spec.plan import CheckpointManifest, CheckpointPart
from rolecall.spec.role import Role
from rolecall.workloads.embedding_ddp.batches import Batch, Dataset
from rolecall.workloads.embedding_ddp.dense import make_dense
from rolecall.workloads.embedding_ddp.embedding import RemoteEmbedding, Shards
from rolecall.workloads.embedding_ddp.evaluation import score
from rolecall.workloads.embedding_ddp.export import write_export
from rolecall.workloads.embedding_ddp.model import pool
from rolecall.workloads.embedding_ddp.params import Params
from rolecall.workloads.embedding_ddp.protocols import ServerOwned, TutorialProtocol

_DENSE = "dense/"


class Training(TrainingLoop[Batch, Params]):
    """One trainer's part of a job."""

    def __init__(self, context: WorkerContext[Params], dataset: Dataset, shards: Shards) -> None:
        super().__init__(context)
        params = context.params
        self._dataset = dataset
        self._rank = context.role_rank
        self._world = context.count(Role.TRAINER)
        # All trainers begin with the same dense layers, but drop different units.
        torch.manual_seed(params.seed)
        dense = make_dense(params, dataset.dense_inputs).to(context.device, weight_dtype(params.precision))
        torch.manual_seed(params.seed + 1 + self._rank)
        self._table = RemoteEmbedding(shards)
        self._dense = DistributedDataParallel(dense)
        self._protocol = self._update_protocol()

    def run(self) -> dict[str, float] | None:
        """Train to the end; the job's result, or None if the gang was asked to leave."""
        result = super().run()
        return result and result | {"bad_rows": float(self._dataset.bad_rows)}

    @property
    def steps_per_epoch(self) -> int:
        """Global batches in one pass over the training rows."""
        return self._dataset.steps_per_epoch

    def batches(self, epoch: int, done: int) -> Iterator[Batch]:
        """This trainer's shares of the epoch's global batches."""
        return self._dataset.train_batches(epoch, done, self._rank, self._world)

    def samples(self, batch: Batch) -> int:
        """Rows of the global batch."""
        return batch.global_rows

    def train_step(self, batch: Batch) -> torch.Tensor:
        """One optimizer step of the whole gang.

        DDP takes the mean of the trainers' gradients and the servers do as DDP does. So each trainer's loss is the sum
        over its rows times (trainers / rows of the global batch): then the mean is the global batch's, however unequal
        the shares.
        """
        with dist_autograd.context() as context_id:
            losses = self._losses(batch)
            dist_autograd.backward(context_id, [losses.sum() * (self._world / batch.global_rows)])
            self._protocol.apply(context_id, self.position.step, self.rate_factor)
        return losses.detach().mean() if len(losses) else losses.detach().sum()

    def _losses(self, batch: Batch) -> torch.Tensor:
        logits = self._logits(batch)
        labels = batch.labels.to(logits.device, logits.dtype)
        return F.binary_cross_entropy_with_logits(logits, labels, reduction="none")

    def _logits(self, batch: Batch) -> torch.Tensor:
        vectors = self._table(batch.ids).to(self.context.device)
        return self._dense(pool(vectors, batch), batch.numeric.to(self.context.device))

    def _update_protocol(self) -> UpdateProtocol:
        if self.params.protocol == "tutorial":
            return TutorialProtocol(self.params, self._table, self._dense)
        return ServerOwned(self.params, self._rank, self._table, self._dense)

    def score(self, split: Held) -> dict[str, float] | None:
        """Loss, AUC and accuracy of all trainers' rows together."""
        if self._dataset.rows(split) == 0:
            return None
        self._dense.eval()
        with torch.no_grad():
            batches = self._dataset.eval_batches(split, self._rank, self._world)
            scores = score(((self._logits(batch), batch.labels) for batch in batches), self.context.device)
        self._dense.train()
        return scores.named(split)

    def objective(self, scores: dict[str, float]) -> float:
        """The validation AUC, or the loss turned round."""
        stopping = self.params.early_stopping
        return scores["validation_auc"] if stopping and stopping.metric == "auc" else super().objective(scores)

    def save_parts(self, step: int) -> list[CheckpointPart]:
        """This trainer's part; the first trainer answers for the servers' too, which write at the same time."""
        from_servers = self._table.save(step) if self._rank == 0 else []
        own = self.context.checkpoints.save_part(step, self._part_name(), self._tensors())
        return [own, *torch.futures.wait_all(from_servers)]

    def _part_name(self) -> str:
        return worker_name(Role.TRAINER, self._rank)

    def _tensors(self) -> dict[str, torch.Tensor]:
        """This trainer's part: the dense layers are the same everywhere, so only the first writes them."""
        tensors = random_state(self.context.device)
        if self._rank == 0:
            tensors |= {_DENSE + name: value for name, value in self._dense.module.state_dict().items()}
            tensors |= self._protocol.state()
        return tensors

    def load(self, manifest: CheckpointManifest) -> None:
        """Go back to `manifest`, all trainers and servers together."""
        if self._rank == 0:
            self._table.load(manifest)
        checkpoints = self.context.checkpoints
        restore_random_state(checkpoints.load_part(manifest, self._part_name()), self.context.device)
        shared = checkpoints.load_part(manifest, worker_name(Role.TRAINER, 0))
        dense = {name.removeprefix(_DENSE): value for name, value in shared.items() if name.startswith(_DENSE)}
        self._dense.module.load_state_dict(dense)
        self._protocol.restore(shared)
        dist.barrier()

    def export(self) -> None:
        """The first trainer writes the model that runs without a cluster. The others don't wait until it is stored: a
        master that is away may take longer to come back than a barrier waits.
        """
        path: Path | None = None
        if self._rank == 0:
            blocks = self._table.blocks(self._dataset.num_ids)
            path = write_export(self.context.workdir.scratch, self._dataset, self.params, blocks, self._dense.module)
        dist.barrier()
        if path is not None:
            self.context.artifacts.put(path.name, path)
