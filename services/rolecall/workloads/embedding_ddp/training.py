"""The training loop of one trainer; all trainers run it in lockstep."""

from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torch.nn.parallel import DistributedDataParallel

from rolecall.kit.loop import EvalSplit
from rolecall.kit.metrics import binary_metrics
from rolecall.kit.parameter_server import ShardedEmbedding, ShardedTrainingLoop, Shards, make_local
from rolecall.kit.precision import weight_dtype
from rolecall.kit.worker import WorkerContext
from rolecall.workloads.embedding_ddp.build import TABLE, Batch, Dataset, make_dense, make_protocol
from rolecall.workloads.embedding_ddp.export import write_export
from rolecall.workloads.embedding_ddp.model import pool
from rolecall.workloads.embedding_ddp.params import Params


class Training(ShardedTrainingLoop[Batch, Params]):
    """One trainer's share of an `embedding-ddp` job."""

    def __init__(self, context: WorkerContext[Params], dataset: Dataset, shards: Shards) -> None:
        params = context.params
        dense = make_local(context, lambda: make_dense(params, dataset.dense_inputs), weight_dtype(params.precision))
        super().__init__(context, shards, make_protocol(context, shards, dense), dense)
        self._dense = DistributedDataParallel(dense)
        self._dataset = dataset
        self._table = ShardedEmbedding(shards.of(TABLE))

    def run(self) -> dict[str, float] | None:
        """As `TrainingLoop.run`; the result also has `bad_rows`."""
        result = super().run()
        return result and result | {"bad_rows": float(self._dataset.table.bad_rows)}

    @property
    def steps_per_epoch(self) -> int:
        return self._dataset.batches.steps_per_epoch

    def batches(self, epoch: int, done: int) -> Iterator[Batch]:
        return self._dataset.train_batches(epoch, done, self.rank, self.world)

    def samples(self, batch: Batch) -> int:
        return batch.global_rows

    def losses(self, batch: Batch) -> torch.Tensor:
        """The binary cross-entropy [b] of this trainer's rows."""
        logits = self._logits(batch)
        labels = batch.labels.to(logits.device, logits.dtype)
        return F.binary_cross_entropy_with_logits(logits, labels, reduction="none")

    def _logits(self, batch: Batch) -> torch.Tensor:
        vectors = self._table(batch.ids).to(self.context.device)
        return self._dense(pool(vectors, batch), batch.numeric.to(self.context.device))

    def evaluate(self, split: EvalSplit) -> dict[str, float] | None:
        if self._dataset.table.rows[split] == 0:
            return None
        self._dense.eval()
        with torch.no_grad():
            batches = self._dataset.eval_batches(split, self.rank, self.world)
            scored = ((self._logits(batch), batch.labels) for batch in batches)
            metrics = binary_metrics(split, scored, self.context.device)
        self._dense.train()
        return metrics

    def objective(self, metrics: dict[str, float]) -> float:
        """The validation AUC, or the negated validation loss."""
        stopping = self.params.early_stopping
        return metrics["validation_auc"] if stopping and stopping.metric == "auc" else super().objective(metrics)

    def export(self) -> None:
        path: Path | None = None
        if self.rank == 0:
            blocks = self.shards.blocks(TABLE, "weight")
            path = write_export(self.context.workdir.scratch, self._dataset, self.params, blocks, self._dense.module)
        # Before the upload: it waits for an unavailable master, possibly longer than the timeout of a barrier.
        dist.barrier()
        if path is not None:
            self.context.artifacts.put(path.name, path)
