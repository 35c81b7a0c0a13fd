# pyright: standard
"""The training loop of one stage; all stages of all replicas run it in lockstep."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from rolecall.kit import CheckpointError, CheckpointManifest, CheckpointPart, Role
from rolecall.kit.checkpoint import (
    flatten_named_optimizer,
    random_state,
    restore_named_optimizer,
    restore_optimizer,
    restore_random_state,
)
from rolecall.kit.declarations import BUBBLE
from rolecall.kit.grid import make_grid
from rolecall.kit.loop import EvalSplit, TrainingLoop
from rolecall.kit.meter import all_passes, stage_times
from rolecall.kit.optimizers import are_finite, scale_rates
from rolecall.kit.pipelining import bubble
from rolecall.kit.text.batches import IGNORED, SequenceBatches, Sequences
from rolecall.kit.text.corpus import Corpus
from rolecall.kit.text.scores import perplexity
from rolecall.kit.worker import WorkerContext, worker_name
from rolecall.workloads.transformer_pipeline.build import make_optimizer
from rolecall.workloads.transformer_pipeline.export import export
from rolecall.workloads.transformer_pipeline.params import Params
from rolecall.workloads.transformer_pipeline.remote import Pipeline, sum_loss

_WEIGHTS = "weights/"
_STATE = "state/"
"""Optimizer state by parameter name."""
_INDEXED_STATE = "optimizer/"
"""Optimizer state by parameter index in checkpoints of release 0.1, which resume with the same cuts."""
MAX_REPORTED = 16
"""Micro-batches whose losses are metrics of their own."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A replica's share of a global batch, both [batch / replicas, context] int64."""

    inputs: Tensor
    targets: Tensor


class Training(TrainingLoop[Batch, Params]):
    """One stage's share of a `transformer-pipeline` job."""

    def __init__(self, context: WorkerContext[Params], corpus: Corpus) -> None:
        super().__init__(context)
        params = context.params
        self._corpus = corpus
        sequences = Sequences(corpus.tokens("train"), params.context, corpus.targets("train"))
        self._batches = SequenceBatches(sequences, params.batch_size, params.seed)
        self._grid = make_grid(params.replicas, context.device)
        self._pipeline = Pipeline(params, corpus.vocabulary_size, self._grid, context.timeline)
        torch.manual_seed(params.seed + 1 + context.role_rank)  # different dropout masks on each worker
        self._optimizer = make_optimizer(params, self._parameters())
        self._epoch_begin = 0  # as an index of the meter's steps

    def run(self) -> dict[str, float] | None:
        """As `TrainingLoop.run`; the result also has the pipeline ranks' times, and their bubbles."""
        result = super().run()
        return result and result | self._stage_times

    @property
    def steps_per_epoch(self) -> int:
        return self._batches.steps_per_epoch

    def batches(self, epoch: int, done: int) -> Iterator[Batch]:
        for inputs, targets in self._batches.shares(epoch, done, self._grid.replica, self._grid.replicas):
            yield Batch(inputs.to(self._grid.device), targets.to(self._grid.device))

    def samples(self, batch: Batch) -> int:
        return self.params.batch_size

    def train_step(self, batch: Batch) -> Tensor:
        """One optimizer step of all stages. Returns the global batch's mean loss per token."""
        scale_rates(self._optimizer, self.rate_factor)
        self._optimizer.zero_grad()
        losses = self._pipeline.step(batch.inputs, batch.targets)
        with self.context.timeline.span("all-reduce", "communication"):
            self._grid.all_reduce_gradients(self._parameters())
            loss = self._clip_and_reduce(losses)
        with self.context.timeline.span("optimizer"):
            self._optimizer.step()
        return loss

    def step_metrics(self) -> dict[str, Tensor]:
        """The mean losses per token of the micro-batches."""
        return micro_batch_metrics(self._losses)

    def epoch_metrics(self) -> dict[str, float]:
        """The measured bubble of this attempt's steps of the epoch, if any but the attempt's first."""
        meter, begin = self._pipeline.meter, self._epoch_begin
        self._epoch_begin = len(meter.durations)
        times = stage_times(meter, self._grid, begin)
        return {BUBBLE.name: times["bubble_measured"]} if "bubble_measured" in times else {}

    def evaluate(self, split: EvalSplit) -> dict[str, float] | None:
        """Mean loss per token of all full sequences, and perplexity."""
        sequences = Sequences(self._corpus.tokens(split), self.params.context, self._corpus.targets(split))
        if len(sequences) == 0:
            return None
        mean = self._mean_loss(sequences)
        return {f"{split}_loss": mean, f"{split}_perplexity": perplexity(mean)}

    def has_finite_weights(self) -> bool:
        return are_finite(self._parameters())

    def save_parts(self, step: int) -> Sequence[CheckpointPart]:
        """Weights from the first replica, since all are equal; the random state from every worker."""
        tensors = random_state(self._grid.device)
        if self._grid.replica == 0:
            parameters = dict(self._pipeline.named_parameters())
            tensors |= {_WEIGHTS + name: weight for name, weight in parameters.items()}
            tensors |= flatten_named_optimizer(self._optimizer, parameters, _STATE)
        return [self.context.checkpoints.save_part(step, worker_name(Role.STAGE, self.context.role_rank), tensors)]

    def load(self, manifest: CheckpointManifest) -> None:
        """Restore weights and optimizer state by name, so that the checkpoint may have other cuts.

        Restores the random state from this worker's part, if there is one. Raises `CheckpointError` if a weight is
        missing.
        """
        parameters = dict(self._pipeline.named_parameters())
        tensors = self._read(manifest, parameters.keys())
        if missing := [name for name in parameters if _WEIGHTS + name not in tensors]:
            raise CheckpointError(
                f"the checkpoint lacks {missing[0]} and {len(missing) - 1} more weights of this stage"
            )
        with torch.no_grad():
            for name, weight in parameters.items():
                weight.copy_(tensors[_WEIGHTS + name])
        if any(name.startswith(_INDEXED_STATE) for name in tensors):
            restore_optimizer(self._optimizer, tensors, _INDEXED_STATE)
        else:
            restore_named_optimizer(self._optimizer, parameters, tensors, _STATE)
        if "random/cpu" in tensors:
            restore_random_state(tensors, self._grid.device)
        dist.barrier()

    def _read(self, manifest: CheckpointManifest, parameters: Collection[str]) -> dict[str, Tensor]:
        """This worker's part, if there is one, and from other parts the tensors of this stage.

        Reads the part of the same rank of the first replica first, and no further parts if the cuts are the same.
        """
        checkpoints = self.context.checkpoints
        own, same_rank = (worker_name(Role.STAGE, rank) for rank in (self.context.role_rank, self._grid.rank))
        parts = [part.name for part in manifest.parts]
        tensors = checkpoints.load_part(manifest, own) if own in parts else {}
        for part in sorted(parts, key=lambda part: part != same_rank):
            if all(_WEIGHTS + name in tensors for name in parameters):
                break
            if part != own:
                read = checkpoints.load_part(manifest, part)
                tensors |= {name: tensor for name, tensor in read.items() if _belongs(name, parameters)}
        return tensors

    def export(self) -> None:
        # Collect the times first: no collective may follow `export`, and waiting for it must not count.
        meter, order = self._pipeline.meter, self._pipeline.order
        self._stage_times = stage_times(meter, self._grid) | {"bubble_theory": bubble(order)}
        if (passes := all_passes(meter, self._grid, self._pipeline.stages)).has(order):
            self._stage_times["bubble_simulated"] = bubble(order, passes.cost)
        export(self.context, self._pipeline, self._corpus)

    def _parameters(self) -> list[torch.nn.Parameter]:
        return [parameter for _, parameter in self._pipeline.named_parameters()]

    def _clip_and_reduce(self, losses: Tensor) -> Tensor:
        """Clip gradients by their norm over all stages, and sum the losses over all ranks, in one all-reduce.

        Keeps each micro-batch's mean loss over the replicas, and returns the global batch's.
        """
        gradients = [parameter.grad for parameter in self._parameters() if parameter.grad is not None]
        norms = [torch.linalg.vector_norm(gradient, dtype=torch.float64) for gradient in gradients]
        square = torch.stack(norms).square().sum()
        loss = sum(losses, start=torch.zeros_like(square))
        sums = torch.cat([torch.stack([square / self._grid.replicas, loss]), losses])
        dist.all_reduce(sums)
        if self.params.max_grad_norm is not None:
            factor = (self.params.max_grad_norm / (sums[0].sqrt() + 1e-6)).clamp(max=1.0)
            for gradient in gradients:
                gradient.mul_(factor)
        self._losses = sums[2:] * self.params.micro_batches
        return sums[1]

    def _mean_loss(self, sequences: Sequences) -> float:
        """The mean loss per token. Replicas take micro-batches round-robin; the last ones are padded."""
        size, replicas = self.params.micro_batch, self._grid.replicas
        rounds = -(-len(sequences) // (size * replicas))
        firsts = [(turn * replicas + self._grid.replica) * size for turn in range(rounds)]
        sums = torch.zeros(2, dtype=torch.float64, device=self._grid.device)

        def add(number: int, logits: Tensor) -> None:
            targets = sequences.padded(firsts[number], size)[1].to(self._grid.device)
            sums.add_(torch.stack([sum_loss(logits, targets).double(), (targets != IGNORED).sum().double()]))

        inputs = (sequences.padded(first, size)[0].to(self._grid.device) for first in firsts)
        self._pipeline.forward(inputs, add)
        dist.all_reduce(sums)
        return float(sums[0] / sums[1])


def _belongs(name: str, parameters: Collection[str]) -> bool:
    """True if a checkpoint's tensor is one of these parameters or of their optimizer state."""
    if name.startswith(_WEIGHTS):
        return name.removeprefix(_WEIGHTS) in parameters
    if name.startswith(_STATE):
        return name.removeprefix(_STATE).rpartition("/")[0] in parameters
    return name.startswith(_INDEXED_STATE)


def micro_batch_metrics(losses: Tensor) -> dict[str, Tensor]:
    """Names for the losses [micro_batches]: each of up to `MAX_REPORTED`, and the extremes of all."""
    each = {f"micro_batch_{number}_loss": loss for number, loss in enumerate(losses[:MAX_REPORTED])}
    few = each if len(losses) <= MAX_REPORTED else {}
    return few | {"micro_batch_loss_min": losses.min(), "micro_batch_loss_max": losses.max()}
