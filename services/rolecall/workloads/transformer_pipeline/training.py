"""The training loop of one stage; all stages of all replicas run it in step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from rolecall.kit.loop import EvalSplit, TrainingLoop
from rolecall.kit.optimizers import dense_optimizer, scale_rates
from rolecall.kit.pipelining import bubble
from rolecall.kit.text.corpus import Corpus
from rolecall.runtime.checkpoint import flatten_optimizer, random_state, restore_optimizer, restore_random_state
from rolecall.runtime.context import WorkerContext, worker_name
from rolecall.spec.plan import CheckpointManifest, CheckpointPart
from rolecall.spec.role import Role
from rolecall.workloads.transformer_pipeline.export import export
from rolecall.workloads.transformer_pipeline.grid import arrange
from rolecall.workloads.transformer_pipeline.meter import stage_times
from rolecall.workloads.transformer_pipeline.model import Shape
from rolecall.workloads.transformer_pipeline.params import Params
from rolecall.workloads.transformer_pipeline.pipeline import Pipeline, summed_loss
from rolecall.workloads.transformer_pipeline.sequences import IGNORED, Epochs, Sequences

_WEIGHTS = "weights/"


@dataclass(frozen=True, slots=True)
class Batch:
    """A replica's share of a global batch, both [batch / replicas, context] int64."""

    inputs: Tensor
    targets: Tensor


class Training(TrainingLoop[Batch, Params]):
    """One stage's part of a job."""

    def __init__(self, context: WorkerContext[Params], corpus: Corpus) -> None:
        super().__init__(context)
        params = context.params
        self._corpus = corpus
        self._epochs = Epochs(Sequences(corpus.tokens("train"), params.context), params.batch_size, params.seed)
        self._grid = arrange(params.replicas, context.device)
        self._shape = decoder_shape(params, corpus.vocabulary_size)
        self._pipeline = Pipeline(params, self._shape, self._grid)
        torch.manual_seed(params.seed + 1 + context.role_rank)  # every worker drops other units
        self._optimizer = self._make_optimizer()

    def run(self) -> dict[str, float] | None:
        """Train to the end; the result has where the pipeline ranks' time went, and the bubble that theory expects."""
        result = super().run()
        return result and result | self._stage_times | {"bubble_theory": bubble(self._pipeline.order)}

    @property
    def steps_per_epoch(self) -> int:
        """Whole global batches in one pass."""
        return self._epochs.steps_per_epoch

    def batches(self, epoch: int, done: int) -> Iterator[Batch]:
        """This replica's shares."""
        for inputs, targets in self._epochs.shares(epoch, done, self._grid.replica, self._grid.replicas):
            yield Batch(inputs.to(self._grid.device), targets.to(self._grid.device))

    def samples(self, batch: Batch) -> int:
        """Sequences."""
        return self.params.batch_size

    def train_step(self, batch: Batch) -> Tensor:
        """One step of all stages; the global batch's mean loss per token."""
        scale_rates(self._optimizer, self.rate_factor)
        self._optimizer.zero_grad()
        loss = self._pipeline.step(batch.inputs, batch.targets)
        self._grid.add_gradients(self._parameters())
        loss = self._agree(loss)
        self._optimizer.step()
        return loss

    def evaluate(self, split: EvalSplit) -> dict[str, float] | None:
        """The mean loss per token of all whole sequences, and its exponential."""
        sequences = Sequences(self._corpus.tokens(split), self.params.context)
        if len(sequences) == 0:
            return None
        mean = self._mean_loss(sequences)
        return {f"{split}_loss": mean, f"{split}_perplexity": torch.tensor(mean).exp().item()}

    def save_parts(self, step: int) -> Sequence[CheckpointPart]:
        """The replicas' weights are equal, so the first one writes them; everyone writes what it draws from."""
        tensors = random_state(self._grid.device)
        if self._grid.replica == 0:
            tensors |= {_WEIGHTS + name: weight for name, weight in self._pipeline.named_parameters()}
            tensors |= flatten_optimizer(self._optimizer)
        return [self.context.checkpoints.save_part(step, worker_name(Role.STAGE, self.context.role_rank), tensors)]

    def load(self, manifest: CheckpointManifest) -> None:
        """Weights and optimizer from the first replica's same rank, random state from this worker's own part."""
        checkpoints = self.context.checkpoints
        own = checkpoints.load_part(manifest, worker_name(Role.STAGE, self.context.role_rank))
        shared = own
        if self._grid.replica > 0:
            shared = checkpoints.load_part(manifest, worker_name(Role.STAGE, self._grid.rank))
        with torch.no_grad():
            for name, weight in self._pipeline.named_parameters():
                weight.copy_(shared[_WEIGHTS + name])
        restore_optimizer(self._optimizer, shared)
        restore_random_state(own, self._grid.device)
        dist.barrier()

    def export(self) -> None:
        """The model that runs without a cluster, and a text that it wrote. All that the ranks do together is done."""
        # Before the first replica writes its files, so that no rank's waiting for that counts.
        self._stage_times = stage_times(self._pipeline.meter, self._grid)
        export(self.context, self._pipeline, self._shape, self._corpus)

    def _parameters(self) -> list[torch.nn.Parameter]:
        return [parameter for _, parameter in self._pipeline.named_parameters()]

    def _make_optimizer(self) -> torch.optim.Optimizer:
        """Weight decay is for matrices: norms and biases go without."""
        matrices = [parameter for parameter in self._parameters() if parameter.ndim > 1]
        vectors = [parameter for parameter in self._parameters() if parameter.ndim == 1]
        groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
        return dense_optimizer(self.params.optimizer).build([group for group in groups if group["params"]])

    def _agree(self, loss: Tensor) -> Tensor:
        """Clip the gradient by its norm over all stages, and give every rank the loss, in one message."""
        gradients = [parameter.grad for parameter in self._parameters() if parameter.grad is not None]
        norms = [torch.linalg.vector_norm(gradient, dtype=torch.float64) for gradient in gradients]
        square = torch.stack(norms).square().sum()
        sums = torch.stack([square / self._grid.replicas, loss])
        dist.all_reduce(sums)
        if self.params.max_grad_norm is not None:
            factor = (self.params.max_grad_norm / (sums[0].sqrt() + 1e-6)).clamp(max=1.0)
            for gradient in gradients:
                gradient.mul_(factor)
        return sums[1]

    def _mean_loss(self, sequences: Sequences) -> float:
        """Each replica takes every so many-th micro-batch; the last ones are filled up with what does not count."""
        size, replicas = self.params.micro_batch, self._grid.replicas
        rounds = -(-len(sequences) // (size * replicas))
        firsts = [(turn * replicas + self._grid.replica) * size for turn in range(rounds)]
        sums = torch.zeros(2, dtype=torch.float64, device=self._grid.device)

        def add(number: int, logits: Tensor) -> None:
            targets = sequences.padded(firsts[number], size)[1].to(self._grid.device)
            sums.add_(torch.stack([summed_loss(logits, targets).double(), (targets != IGNORED).sum().double()]))

        inputs = (sequences.padded(first, size)[0].to(self._grid.device) for first in firsts)
        self._pipeline.forward(inputs, add)
        dist.all_reduce(sums)
        return float(sums[0] / sums[1])


def decoder_shape(params: Params, vocabulary: int) -> Shape:
    """The whole decoder's shape."""
    return Shape(
        vocabulary=vocabulary,
        context=params.context,
        layers=params.layers,
        dim=params.dim,
        heads=params.heads,
        hidden=params.hidden or 4 * params.dim,
        positions=params.positions,
        dropout=params.dropout,
    )
