# pyright: standard
"""The training loop of one trainer; all trainers run it in lockstep."""

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - torch's convention

from rolecall.kit.loop import EvalSplit
from rolecall.kit.metrics import binary_metrics, class_metrics, regression_metrics
from rolecall.kit.parameter_server import ShardedTrainingLoop, Update, make_local
from rolecall.kit.precision import weight_dtype
from rolecall.kit.worker import WorkerContext
from rolecall.workloads.embedding_ddp.build import TABLE, Batch, Dataset, make_dense, require_normalizable_shares
from rolecall.workloads.embedding_ddp.export import write_export
from rolecall.workloads.embedding_ddp.params import Loss, Params
from rolecall.workloads.embedding_ddp.remote import HybridModel, PooledEmbedding, Table, make_embedding, make_protocol

_LOSSES: dict[Loss, Callable[..., torch.Tensor]] = {
    "binary-cross-entropy": F.binary_cross_entropy_with_logits,
    "cross-entropy": F.cross_entropy,
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "huber": F.huber_loss,
}
_INCREASING = ("auc", "accuracy")


class Training(ShardedTrainingLoop[Batch, Params]):
    """One trainer's share of an `embedding-ddp` job."""

    def __init__(self, context: WorkerContext[Params], dataset: Dataset, table: Table) -> None:
        params = context.params
        inputs, classes = dataset.dense_inputs, dataset.classes
        dense = make_local(context, lambda: make_dense(params, inputs, classes), weight_dtype(params.precision))
        require_normalizable_shares(dense, inputs, dataset.batches, context.count(context.role))
        embedding = make_embedding(params, table, context.device)
        self._pooled = embedding if isinstance(embedding, PooledEmbedding) else None
        self._model = HybridModel(embedding, dense, context.device, width=dataset.width)
        protocol = make_protocol(context, table, self._model)
        super().__init__(context, table.shards, protocol, dense, uses_stale_rows=params.staleness > 0)
        self._dataset = dataset

    def run(self) -> dict[str, float] | None:
        """As `TrainingLoop.run`; the result also has `bad_rows`."""
        result = super().run()
        return result and result | {"bad_rows": float(self._dataset.table.bad_rows)}

    @property
    def steps_per_epoch(self) -> int:
        return self._dataset.batches.steps_per_epoch

    def batches(self, epoch: int, done: int) -> Iterator[Batch]:
        """A batch is returned when as many following ones are prepared as trainers look up ahead."""
        prepared: deque[Batch] = deque()
        if self._pooled:
            self._pooled.forget_prepared()
        for batch in self._dataset.train_batches(epoch, done, self.rank, self.world):
            if self._pooled:
                self._pooled.prepare(batch.ids, batch.offsets)
            prepared.append(batch)
            if len(prepared) > self.params.staleness:
                yield prepared.popleft()
        yield from prepared

    def look_ahead(self, after: Update | None) -> None:
        """Request the rows of all batches that are prepared."""
        if self._pooled:
            self._pooled.request_prepared(after)

    def samples(self, batch: Batch) -> int:
        return batch.global_rows

    def losses(self, batch: Batch) -> torch.Tensor:
        """The loss [b] of each of this trainer's rows."""
        outputs = self._outputs(batch)
        target = batch.labels.to(outputs.device) if self.params.target == "classes" else batch.labels.to(outputs)
        return self._loss(outputs, target, reduction="none")

    @property
    def _loss(self) -> Callable[..., torch.Tensor]:
        return _LOSSES[self.params.loss_name]

    def _outputs(self, batch: Batch) -> torch.Tensor:
        return self._model(batch.ids, batch.offsets, batch.numeric)

    def evaluate(self, split: EvalSplit) -> dict[str, float] | None:
        if self._dataset.table.rows[split] == 0:
            return None
        self._model.fc.eval()
        with torch.no_grad():
            batches = self._dataset.eval_batches(split, self.rank, self.world)
            scored = ((self._outputs(batch), batch.labels) for batch in batches)
            match self.params.target:
                case "binary":
                    metrics = binary_metrics(split, scored, self.context.device)
                case "classes":
                    metrics = class_metrics(split, scored, self.context.device)
                case "number":
                    metrics = regression_metrics(split, scored, self._loss, self.context.device)
        self._model.fc.train()
        return metrics

    def objective(self, metrics: dict[str, float]) -> float:
        """The validation metric of early stopping, negated if it must decrease."""
        value = metrics[f"validation_{self.params.stopping_metric}"]
        return value if self.params.stopping_metric in _INCREASING else -value

    def export(self) -> None:
        path: Path | None = None
        if self.rank == 0:
            blocks = self.shards.blocks(TABLE, "weight")
            path = write_export(self.context.workdir.scratch, self._dataset, self.params, blocks, self._model.fc.module)
        # Before the upload, which waits for an unavailable master: only this rank has to.
        dist.barrier()
        if path is not None:
            self.context.artifacts.put(path.name, path)
