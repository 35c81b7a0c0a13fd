# pyright: standard
"""A stage of a pipeline: its part of the model, its neighbors, and at the first stage the images.

The driver calls one method at a time on all stages, which execute it in their main threads. The stages exchange tensors
peer to peer.
"""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import rpc
from torch.futures import Future

from rolecall.kit import CheckpointManifest, CheckpointPart, Role, Stopped
from rolecall.kit.data_order import derive_seed, share_of
from rolecall.kit.declarations import IN_FLIGHT
from rolecall.kit.grid import own_group
from rolecall.kit.meter import ComputeTime, device_clock
from rolecall.kit.metrics import ClassMetrics, ClassMetricsAccumulator
from rolecall.kit.optimizers import are_finite
from rolecall.kit.pipelining import most_in_flight, zero_bubble
from rolecall.kit.worker import Category, Mailbox, WorkerContext, call_limit, measurements, worker_name
from rolecall.workloads.resnet_pipeline.build import (
    SAMPLE_LOSSES,
    Dataset,
    DatasetInfo,
    ModelPart,
    block_costs,
    blocks_with_weights,
    require_fit,
    whole_model,
)
from rolecall.workloads.resnet_pipeline.params import Params
from rolecall.workloads.resnet_pipeline.remote import Kind, Outbox, TutorialShard, inbox

# Micro-batches of an evaluation that may be queued at a stage.
_MAX_PENDING = 2
_requests: Mailbox[tuple[Callable[..., Any], tuple[Any, ...]], Any] = Mailbox()


def run(context: WorkerContext[Params]) -> None:
    """Serve calls until the driver shuts this stage down."""
    stage = PipelineStage(context)
    with call_limit(context.params.rpc.timeout_s):
        while stage.shutdown_reason is None:
            _requests.answer_one(lambda request: request[0](stage, *request[1]))
    if stage.shutdown_reason == "stopped":
        raise Stopped("stopped between two steps, as requested")


@rpc.functions.async_execution
def execute(method: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Called by the driver: the result of a method of this process's `PipelineStage`."""
    return _requests.post((method, arguments))


class StageStep(NamedTuple):
    """The values that a stage returns after a step."""

    loss: float
    """The mean loss at a last stage, elsewhere 0."""
    compute_s: float
    """The time of computations that were completed since the last step."""


class PipelineStage:
    """Stage `index` of `stages` of one replica. Its methods run in the main thread, called by the driver."""

    def __init__(self, context: WorkerContext[Params]) -> None:
        self._context = context
        self._params = context.params
        self._stages = context.count(Role.STAGE) // self._params.replicas
        self._replica, self._index = divmod(context.role_rank, self._stages)
        self._replica_group = self._make_replica_group()
        self._compute_time = ComputeTime(device_clock(context.device))
        self._outboxes = {index: self._outbox(index) for index in range(self._stages) if index != self._index}
        self.shutdown_reason: Literal["done", "stopped"] | None = None
        """Set by `shutdown`; ends the stage's loop."""

    @property
    def _is_first(self) -> bool:
        return self._index == 0

    @property
    def _is_last(self) -> bool:
        return self._index == self._stages - 1

    # Before the first step.

    def open(self) -> DatasetInfo:
        """At a first stage, open the images; raises `InputError` if they are invalid."""
        self._dataset = Dataset(self._params, self._replica, self._context.device)
        return self._dataset.info

    def measure(self, classes: int) -> list[float]:
        """The cost of each block on this device, in seconds."""
        return block_costs(self._params, classes, self._context.device, self._context.cache)

    def blocks(self, classes: int) -> dict[str, bool]:
        """The names of the model's blocks, between which it can be cut; true for those with weights.

        Raises `InputError` if a custom model fails on images of the job's size.
        """
        model = whole_model(self._params, classes)
        require_fit(self._params, model, self._context.device)
        return blocks_with_weights(model)

    def build(self, partition: list[tuple[str, ...]], classes: int) -> None:
        """Build this stage's blocks; `partition` has the block names of all stages."""
        self._part = ModelPart(self._params, classes, partition[self._index], self._context.device)
        self._part.split_backward()
        self._metrics = ClassMetricsAccumulator(classes, self._context.device, SAMPLE_LOSSES[self._params.loss])
        order = zero_bubble(self._stages, self._params.micro_batches)
        measurements.set(IN_FLIGHT, most_in_flight(order[self._index]))

    def adopt(self, shard: "rpc.RRef[TutorialShard]") -> None:
        """Use the part of a shard that the driver created in this process; raises the error of its creation."""
        self._part = shard.local_value().part

    def _outbox(self, index: int) -> Outbox:
        """The outbox to the stage at `index` of this replica."""
        name = worker_name(Role.STAGE, self._replica * self._stages + index)
        workers = self._context.launch.gang.workers
        on_gpu = {worker_name(worker.role, worker.role_rank) for worker in workers if worker.gpu is not None}
        return Outbox(name, accepts_gpu=name in on_gpu)

    # Training.

    def train(self, step: int, epoch: int, batch: int, rate_factor: float) -> StageStep:
        """Optimizer step `step` of the job, counted from 1, on batch `batch` of `epoch`, both counted from 0."""
        # Dropout depends only on the position, so checkpoints need no generator state.
        torch.manual_seed(
            derive_seed(derive_seed(derive_seed(self._params.seed, epoch), batch), self._context.role_rank)
        )
        with self._context.timeline.step(step):
            loss = self._train_step(epoch, batch, rate_factor)
        return StageStep(loss, self._compute_time.take())

    def _train_step(self, epoch: int, batch: int, rate_factor: float) -> float:
        if self._is_first:
            with self._span("data", "data"):
                self._images = self._load_batch(epoch, batch)
        losses: list[torch.Tensor] = []
        for _, kind, micro_batch in zero_bubble(self._stages, self._params.micro_batches)[self._index]:
            if kind == "I":
                self._backward(micro_batch)
            elif kind == "W":
                with self._computation("W", micro_batch):
                    self._part.backward_weights(micro_batch)
            elif self._is_last:
                features, labels = self._take("activation", micro_batch), self._take("labels", micro_batch)
                with self._computation("F", micro_batch):
                    losses.append(self._part.forward_loss(micro_batch, features, labels))
            else:
                self._forward(micro_batch)
        self._flush()
        with self._span("all-reduce", "communication"):
            self._average_replicas()
        with self._computation("optimizer"):
            self._part.update(rate_factor)
        return float(torch.stack(losses).sum()) if losses else 0.0

    def _load_batch(self, epoch: int, batch: int) -> list[torch.Tensor]:
        """Split the images into micro-batches, and send the labels to the last stage."""
        images, labels = self._dataset.training_batch(epoch, batch)
        for micro_batch, part in enumerate(labels.chunk(self._params.micro_batches)):
            self._outboxes[self._stages - 1].send("labels", micro_batch, part)
        return list(images.chunk(self._params.micro_batches))

    def _forward(self, micro_batch: int) -> None:
        features = self._images[micro_batch] if self._is_first else self._take("activation", micro_batch)
        with self._computation("F", micro_batch):
            outputs = self._part.forward(micro_batch, features, needs_input_gradient=not self._is_first)
        with self._span("send", "communication", micro_batch):
            self._outboxes[self._index + 1].send("activation", micro_batch, outputs)

    def _backward(self, micro_batch: int) -> None:
        gradient = None if self._is_last else self._take("gradient", micro_batch)
        with self._computation("I", micro_batch):
            input_gradient = self._part.backward(micro_batch, gradient)
        if input_gradient is not None:
            with self._span("send", "communication", micro_batch):
                self._outboxes[self._index - 1].send("gradient", micro_batch, input_gradient)

    def _take(self, kind: Kind, micro_batch: int) -> torch.Tensor:
        """Wait for a tensor of another stage."""
        with self._span("wait", "wait", micro_batch):
            return inbox.take((kind, micro_batch))

    @contextmanager
    def _computation(self, name: str, micro_batch: int | None = None) -> Generator[None]:
        with self._span(name, "compute", micro_batch), self._compute_time.computation():
            yield

    def _span(self, name: str, category: Category, micro_batch: int | None = None) -> AbstractContextManager[None]:
        return self._context.timeline.span(name, category, stage=self._index, micro_batch=micro_batch)

    def _flush(self) -> None:
        """Wait until the other stages have received all tensors."""
        with self._span("send", "communication"):
            for outbox in self._outboxes.values():
                outbox.flush()

    def _make_replica_group(self) -> dist.ProcessGroup | None:
        """The group of the stages at this index in all replicas."""
        if self._params.replicas == 1:
            return None
        total = self._params.replicas * self._stages
        return own_group([range(index, total, self._stages) for index in range(self._stages)])

    def _average_replicas(self) -> None:
        """Average gradients and running statistics over the replicas, in one all-reduce."""
        if self._replica_group is None:
            return
        shared = list(self._part.replicated_tensors())
        if not shared:  # All weights of the stage are frozen.
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in shared])
        dist.all_reduce(flat, group=self._replica_group)
        means = (flat / self._params.replicas).split([tensor.numel() for tensor in shared])
        for tensor, mean in zip(shared, means, strict=True):
            tensor.copy_(mean.view(tensor.shape))

    # Evaluation, checkpoints, export.

    def evaluate(self, split: str, images: int) -> ClassMetrics | None:
        """Evaluate this replica's share of a split of `images` images. Returns the metrics at a last stage."""
        share = share_of(images, self._replica, self._params.replicas)
        with self._span("evaluate", "evaluation"), self._part.inference():
            if self._is_first:
                self._evaluate_first(split, share)
            else:
                self._evaluate_later(-(-(share.stop - share.start) // self._params.micro_batch_size))
            self._flush()
        return self._metrics.compute() if self._is_last else None

    def _evaluate_first(self, split: str, share: slice) -> None:
        batches = self._dataset.evaluation_batches(split, share, self._params.micro_batch_size)
        for number, (images, labels) in enumerate(batches):
            self._outboxes[self._stages - 1].send("labels", number, labels)
            self._outboxes[self._index + 1].send(
                "activation", number, self._part.compute(images), max_pending=_MAX_PENDING
            )

    def _evaluate_later(self, micro_batches: int) -> None:
        for number in range(micro_batches):
            outputs = self._part.compute(inbox.take(("activation", number)))
            if self._is_last:
                self._metrics.add(outputs, inbox.take(("labels", number)))
            else:
                self._outboxes[self._index + 1].send("activation", number, outputs, max_pending=_MAX_PENDING)

    def has_finite_weights(self) -> bool:
        """False if a weight of this stage is NaN or infinite."""
        return are_finite(self._part.blocks.parameters())

    def save(self, step: int) -> CheckpointPart:
        """Write this stage's part of the checkpoint of `step`; called in the first replica, all replicas are equal."""
        return self._context.checkpoints.save_part(step, f"stage-{self._index}", self._part.state())

    def load(self, manifest: CheckpointManifest) -> None:
        """Restore `manifest`. Reads all parts, because the cuts may differ from those of the checkpoint."""
        tensors: dict[str, torch.Tensor] = {}
        for part in manifest.parts:
            tensors |= self._context.checkpoints.load_part(manifest, part.name)
        self._part.restore(tensors)

    def shutdown(self, reason: Literal["done", "stopped"]) -> None:
        """Leave the gang after this call."""
        self.shutdown_reason = reason

    def weights(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by their names in the whole model."""
        return self._part.weights()
