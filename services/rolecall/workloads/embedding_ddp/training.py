"""The training loop of one trainer; all trainers run it in step."""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch.nn.parallel import DistributedDataParallel

from rolecall.runtime.agreement import Agreement, Decision
from rolecall.runtime.checkpoint import random_state, restore_random_state
from rolecall.runtime.context import WorkerContext, worker_name
from rolecall.spec.plan import CheckpointManifest
from rolecall.spec.role import Role
from rolecall.spec.state import StopMode
from rolecall.workloads.embedding_ddp.batches import Batch, Dataset, Split
from rolecall.workloads.embedding_ddp.embedding import RemoteEmbedding, Shards
from rolecall.workloads.embedding_ddp.evaluation import Scores, score
from rolecall.workloads.embedding_ddp.export import write_export
from rolecall.workloads.embedding_ddp.model import DenseNet, pool
from rolecall.workloads.embedding_ddp.params import Params
from rolecall.workloads.embedding_ddp.protocols import SeedProtocol, ServerOwned, UpdateProtocol

_DENSE = "dense/"


@dataclass(frozen=True, slots=True)
class Position:
    """Where the training stands; everything that a resumed attempt needs besides the tensors."""

    epoch: int = 0
    """Epochs done, and so the number of the one under way."""
    step: int = 0
    """Global batches done since the job began."""
    epoch_start: int = 0
    """The step with which the epoch under way began."""
    best: float | None = None
    """The best validation score so far."""
    best_checkpoint: dict[str, Any] | None = None
    """The manifest that has the best epoch's weights."""
    stale_epochs: int = 0
    """Epochs since the best one."""
    samples: int = 0
    """Rows trained on since the job began."""


class Training:
    """One trainer's part of a job, from the first step (or the checkpoint) to the job's result."""

    def __init__(self, context: WorkerContext, dataset: Dataset, shards: Shards) -> None:
        params = context.params
        assert isinstance(params, Params)
        self._context = context
        self._params = params
        self._dataset = dataset
        self._rank = context.role_rank
        self._world = context.count(Role.TRAINER)
        # All trainers begin with the same dense layers, but drop different units.
        torch.manual_seed(params.seed)
        dense = DenseNet(**dataset.dense_shape(params)).to(context.device, getattr(torch, params.precision))
        torch.manual_seed(params.seed + 1 + self._rank)
        self._table = RemoteEmbedding(shards)
        self._dense = DistributedDataParallel(dense)
        self._protocol = self._update_protocol()
        self._position = Position()
        self._last_save = time.monotonic()
        self._owes_checkpoint = False

    def run(self) -> dict[str, float] | None:
        """Train to the end; the job's result, or None if the gang was asked to leave."""
        began = time.monotonic()
        self._resume()
        first_sample = self._position.samples
        self._agreement = Agreement(self._position.step)
        if not self._all_epochs():
            return None
        rate = (self._position.samples - first_sample) / (time.monotonic() - began)
        self._restore_best()
        result = self._final_scores() | {"samples_per_s": rate, "wall_s": time.monotonic() - began}
        self._export()
        return result | {
            "epochs": float(self._position.epoch),
            "steps": float(self._position.step),
            "bad_rows": float(self._dataset.bad_rows),
        }

    def _all_epochs(self) -> bool:
        """False if the gang was asked to leave."""
        while not self._finished():
            if not self._epoch():
                return False
            self._judge_epoch()
        return True

    def _finished(self) -> bool:
        patience = self._params.early_stopping.patience if self._params.early_stopping else None
        stale = patience is not None and self._position.stale_epochs >= patience
        return stale or self._position.epoch >= self._params.epochs or self._out_of_steps()

    def _out_of_steps(self) -> bool:
        return self._params.max_steps is not None and self._position.step >= self._params.max_steps

    def _epoch(self) -> bool:
        """Train on the rest of the epoch under way; False if the gang was asked to leave."""
        for batch in self._batches():
            self._context.report(
                self._position.step + 1,
                loss=self._step(batch),
                samples=batch.global_rows,
                steps=self._steps(),
                epoch=self._position.epoch + 1,
            )
            position = self._position
            self._position = replace(position, step=position.step + 1, samples=position.samples + batch.global_rows)
            decision = self._agreement.after(self._position.step, self._wish)
            wanted = decision.checkpoint or self._at_checkpoint_step()
            # A step has one checkpoint: at an epoch's end it is written with the epoch's judgement in it.
            self._owes_checkpoint = wanted and self._ends_epoch() and not decision.stop
            if wanted and not self._owes_checkpoint:
                self._save()
            if decision.stop:
                return False
            if self._out_of_steps():
                break
        return True

    def _ends_epoch(self) -> bool:
        done = self._position.step - self._position.epoch_start
        return done >= self._dataset.steps_per_epoch or self._out_of_steps()

    def _batches(self) -> Iterator[Batch]:
        done = self._position.step - self._position.epoch_start
        return self._dataset.train_batches(self._position.epoch, done, self._rank, self._world)

    def _steps(self) -> int:
        """The job's steps, unless it stops early."""
        every_epoch = self._params.epochs * self._dataset.steps_per_epoch
        return min(every_epoch, self._params.max_steps or every_epoch)

    def _wish(self) -> Decision:
        mode = self._context.stop_requested()
        return Decision(
            stop=mode is not None, checkpoint=mode in (StopMode.PAUSE, StopMode.DRAIN) or self._checkpoint_due()
        )

    def _at_checkpoint_step(self) -> bool:
        every = self._params.checkpoint_every_steps
        return every is not None and self._position.step % every == 0

    def _checkpoint_due(self) -> bool:
        """Only the first trainer's clock counts, or one checkpoint would follow on another."""
        every = self._params.checkpoint_every_s
        return self._rank == 0 and every is not None and time.monotonic() - self._last_save >= every

    def _step(self, batch: Batch) -> torch.Tensor:
        """One optimizer step of the whole gang; this trainer's share of the loss, scaled to the mean over its rows.

        DDP takes the mean of the trainers' gradients and the servers do as DDP does. So each trainer's loss is the
        sum over
        its rows times (trainers / rows of the global batch): then the mean is the global batch's, however unequal the
        shares.
        """
        with dist_autograd.context() as context_id:
            losses = self._losses(batch)
            dist_autograd.backward(context_id, [losses.sum() * (self._world / batch.global_rows)])
            self._protocol.apply(context_id, self._position.step)
        return losses.detach().mean() if len(losses) else losses.detach().sum()

    def _losses(self, batch: Batch) -> torch.Tensor:
        logits = self._logits(batch)
        labels = batch.labels.to(logits.device, logits.dtype)
        return F.binary_cross_entropy_with_logits(logits, labels, reduction="none")

    def _logits(self, batch: Batch) -> torch.Tensor:
        vectors = self._table(batch.ids).to(self._context.device)
        return self._dense(pool(vectors, batch), batch.numeric.to(self._context.device))

    def _update_protocol(self) -> UpdateProtocol:
        if self._params.protocol == "seed":
            return SeedProtocol(self._params, self._table, self._dense)
        return ServerOwned(self._params, self._rank, self._table, self._dense, self._rate_factor)

    def _rate_factor(self, step: int) -> float:
        return self._params.lr_schedule.factor(step, self._steps())

    def _judge_epoch(self) -> None:
        """Score the validation rows, note whether they are the best so far, and begin the next epoch."""
        position = replace(self._position, epoch=self._position.epoch + 1, epoch_start=self._position.step)
        self._position = position
        scores = self._score("validation")
        if scores is not None:
            self._context.report.evaluated(position.step, position.epoch, **scores.named("validation"))
        if scores is not None and self._is_best(scores):
            manifest = self._save(keep=True)
            self._position = replace(self._position, best_checkpoint=manifest)
        elif self._owes_checkpoint:
            self._save()
        self._owes_checkpoint = False

    def _is_best(self, scores: Scores) -> bool:
        """With early stopping, note in the position how these scores compare; whether they are the best so far."""
        if self._params.early_stopping is None:
            return False
        position = self._position
        value = scores.auc if self._params.early_stopping.metric == "auc" else -scores.loss
        if position.best is not None and value <= position.best:
            self._position = replace(position, stale_epochs=position.stale_epochs + 1)
            return False
        self._position = replace(position, best=value, stale_epochs=0)
        return True

    def _score(self, split: Split) -> Scores | None:
        """This and the other trainers' scores of a split together, or none if it has no rows."""
        if self._dataset.rows(split) == 0:
            return None
        self._dense.eval()
        with torch.no_grad():
            batches = self._dataset.eval_batches(split, self._rank, self._world)
            scores = score(((self._logits(batch), batch.labels) for batch in batches), self._context.device)
        self._dense.train()
        return scores

    def _final_scores(self) -> dict[str, float]:
        """Of the test rows where there are any, else of the validation rows."""
        for split in ("test", "validation"):
            scores = self._score(split)
            if scores is not None:
                return scores.named(split)
        return {}

    def _save(self, *, keep: bool = False) -> dict[str, Any] | None:
        """Write a checkpoint with all trainers and servers; its manifest on every trainer."""
        dist.barrier()  # Under `async`, the others' last gradients must have landed before the servers write.
        step = self._position.step
        from_servers = self._table.save(step) if self._rank == 0 else []
        own = self._context.checkpoints.save_part(step, self._part_name(), self._tensors())
        gathered: list[Any] = [None] * self._world
        dist.all_gather_object(gathered, own)
        manifest: list[Any] = [None]
        if self._rank == 0:
            parts = [*gathered, *torch.futures.wait_all(from_servers)]
            manifest[0] = self._context.checkpoints.commit(step, parts, asdict(self._position), keep=keep).model_dump(
                mode="json"
            )
        dist.broadcast_object_list(manifest, src=0)
        self._last_save = time.monotonic()
        return manifest[0]

    def _part_name(self) -> str:
        return worker_name(Role.TRAINER, self._rank)

    def _tensors(self) -> dict[str, torch.Tensor]:
        """This trainer's part: the dense layers are the same everywhere, so only the first writes them."""
        tensors = random_state(self._context.device)
        if self._rank == 0:
            tensors |= {_DENSE + name: value for name, value in self._dense.module.state_dict().items()}
            tensors |= self._protocol.state()
        return tensors

    def _resume(self) -> None:
        manifest = self._context.checkpoints.resume_from
        if manifest is None:
            return
        self._load(manifest)
        self._position = Position(**manifest.position)
        if manifest.keep:  # It is the best one itself, and could not name itself when it was written.
            self._position = replace(self._position, best_checkpoint=manifest.model_dump(mode="json"))
        self._context.report.event(f"resumed from the checkpoint at step {manifest.step}")

    def _restore_best(self) -> None:
        if self._params.early_stopping and self._position.stale_epochs and self._position.best_checkpoint:
            self._load(CheckpointManifest.model_validate(self._position.best_checkpoint))

    def _load(self, manifest: CheckpointManifest) -> None:
        """Go back to `manifest`, all trainers and servers together."""
        if self._rank == 0:
            self._table.load(manifest)
        checkpoints = self._context.checkpoints
        restore_random_state(checkpoints.load_part(manifest, self._part_name()), self._context.device)
        shared = checkpoints.load_part(manifest, worker_name(Role.TRAINER, 0))
        dense = {name.removeprefix(_DENSE): value for name, value in shared.items() if name.startswith(_DENSE)}
        self._dense.module.load_state_dict(dense)
        self._protocol.restore(shared)
        dist.barrier()

    def _export(self) -> None:
        """The first trainer writes the model that runs without a cluster; the others wait for it at the end."""
        if self._rank == 0:
            blocks = self._table.blocks(self._dataset.num_ids)
            path = write_export(self._context.workdir.scratch, self._dataset, self._params, blocks, self._dense.module)
            self._context.artifacts.put(path.name, path)
        dist.barrier()
