"""One stage of a pipeline: its shard, its neighbours, and at the first stage the images.

The master gives orders, one at a time and to all stages at once; the stages settle among themselves who needs what, and
when.
"""

from dataclasses import dataclass
from typing import Literal, cast

import torch
import torch.distributed as dist
from torch.distributed import rpc
from torchvision.transforms import v2

from rolecall.kit.data_order import DataOrder, derive_seed, share_of
from rolecall.kit.images.loader import ImageSplit, TrainBatches, augmentation, eval_batches, open_splits
from rolecall.kit.pipelining import one_forward_one_backward
from rolecall.kit.precision import weight_dtype
from rolecall.runtime.context import WorkerContext, worker_name
from rolecall.spec.plan import CheckpointManifest, CheckpointPart
from rolecall.spec.role import Role
from rolecall.workloads.resnet_pipeline.costs import block_costs
from rolecall.workloads.resnet_pipeline.evaluation import Scorer, Scores
from rolecall.workloads.resnet_pipeline.model import blocks_of, bring_to_size, normalized
from rolecall.workloads.resnet_pipeline.params import Params
from rolecall.workloads.resnet_pipeline.shard import Shard, whole_model
from rolecall.workloads.resnet_pipeline.tutorial_protocol import TutorialShard
from rolecall.workloads.resnet_pipeline.wire import Outbox, inbox

# How many micro-batches of an evaluation may wait in front of a stage.
_AHEAD = 2


@dataclass(frozen=True, slots=True)
class Inventory:
    """What the first stage found in the images."""

    classes: tuple[str, ...]
    images: dict[str, int]
    """By split."""


class PipelineStage:
    """Stage `place` of `stages` of one replica. All methods run in the main thread, when the master orders it."""

    def __init__(self, context: WorkerContext[Params]) -> None:
        self._context = context
        self._params = context.params
        self._stages = context.count(Role.STAGE) // self._params.replicas
        self._replica, self._place = divmod(context.role_rank, self._stages)
        self._replica_group = self._twins()
        self._splits: dict[str, ImageSplit] = {}
        self._outboxes = {place: self._outbox(place) for place in range(self._stages) if place != self._place}
        self.dismissed: Literal["done", "stopped"] | None = None
        """Why the master needs this stage no longer."""

    @property
    def _is_first(self) -> bool:
        return self._place == 0

    @property
    def _is_last(self) -> bool:
        return self._place == self._stages - 1

    # Before the first step.

    def open(self) -> Inventory:
        """At a first stage: find the images; raises `InputError` if they are wrong."""
        data, seed = self._params.data, self._params.seed
        self._splits = open_splits(data, seed)
        train = self._splits["train"]
        order = DataOrder(len(train), self._params.batch_size, seed)
        transform = v2.Compose([*augmentation(data), bring_to_size(data.size)])
        self._batches = TrainBatches(
            train,
            transform,
            order,
            rank=self._replica,
            replicas=self._params.replicas,
            processes=data.loader_processes,
        )
        return Inventory(train.source.classes, {name: len(split) for name, split in self._splits.items()})

    def measure(self, classes: int) -> list[float]:
        """What each block costs here, in seconds."""
        return block_costs(self._params, classes, self._context.device)

    def block_names(self, classes: int) -> tuple[str, ...]:
        """What the model can be cut between."""
        return tuple(blocks_of(whole_model(self._params, classes)))

    def build(self, partition: list[tuple[str, ...]], classes: int) -> None:
        """Take this stage's blocks; `partition` has the names of every stage's."""
        self._shard = Shard(self._params, classes, partition[self._place], self._context.device)
        self._scorer = Scorer(classes, self._context.device)

    def _outbox(self, place: int) -> Outbox:
        """To the stage at `place` of this replica."""
        name = worker_name(Role.STAGE, self._replica * self._stages + place)
        workers = self._context.launch.gang.workers
        on_gpu = {worker_name(worker.role, worker.role_rank) for worker in workers if worker.gpu is not None}
        return Outbox(name, takes_gpu=name in on_gpu)

    # Training.

    def train(self, epoch: int, step: int, rate_factor: float) -> float:
        """One optimizer step, on batch `step` of `epoch`; at a last stage the mean loss, elsewhere 0."""
        # What random layers draw depends on the position alone, so that there is no generator's state to save.
        torch.manual_seed(
            derive_seed(derive_seed(derive_seed(self._params.seed, epoch), step), self._context.role_rank)
        )
        if self._is_first:
            self._images = self._fed(epoch, step)
        losses: list[torch.Tensor] = []
        for _, kind, micro_batch in one_forward_one_backward(self._stages, self._params.micro_batches)[self._place]:
            if kind == "B":
                self._backward(micro_batch)
            elif self._is_last:
                losses.append(self._forward_loss(micro_batch))
            else:
                self._forward(micro_batch)
        self._flush()
        self._average()
        self._shard.update(rate_factor)
        return float(torch.stack(losses).sum()) if losses else 0.0

    def _fed(self, epoch: int, step: int) -> list[torch.Tensor]:
        """The images by micro-batch; their labels are on their way to the last stage."""
        images, labels = self._batches.at(epoch, step)
        for micro_batch, part in enumerate(labels.chunk(self._params.micro_batches)):
            self._outboxes[self._stages - 1].send("labels", micro_batch, part)
        return list(self._normalized(images).chunk(self._params.micro_batches))

    def _normalized(self, images: torch.Tensor) -> torch.Tensor:
        data = self._params.data
        return normalized(images.to(self._context.device), data.mean, data.std, weight_dtype(self._params.precision))

    def _forward(self, micro_batch: int) -> None:
        features = self._images[micro_batch] if self._is_first else inbox.take(("activation", micro_batch))
        outputs = self._shard.forward(micro_batch, features, from_neighbour=not self._is_first)
        self._outboxes[self._place + 1].send("activation", micro_batch, outputs)

    def _forward_loss(self, micro_batch: int) -> torch.Tensor:
        features, labels = inbox.take(("activation", micro_batch)), inbox.take(("labels", micro_batch))
        return self._shard.forward_loss(micro_batch, features, labels)

    def _backward(self, micro_batch: int) -> None:
        gradient = None if self._is_last else inbox.take(("gradient", micro_batch))
        passed = self._shard.backward(micro_batch, gradient)
        if passed is not None:
            self._outboxes[self._place - 1].send("gradient", micro_batch, passed)

    def _flush(self) -> None:
        """The step is over when every neighbour has taken what was sent."""
        for outbox in self._outboxes.values():
            outbox.flush()

    def _twins(self) -> dist.ProcessGroup | None:
        """The stages at this place of all replicas. Every stage makes every group: torch asks for it."""
        if self._params.replicas == 1:
            return None
        starts = range(0, self._params.replicas * self._stages, self._stages)
        groups = [dist.new_group([start + place for start in starts]) for place in range(self._stages)]
        return cast(dist.ProcessGroup, groups[self._place])  # torch gives who is no member a number

    def _average(self) -> None:
        """Gradients and running statistics become the means over the replicas, in one collective."""
        if self._replica_group is None:
            return
        shared = list(self._shard.to_be_averaged())
        flat = torch.cat([tensor.reshape(-1) for tensor in shared])
        dist.all_reduce(flat, group=self._replica_group)
        means = (flat / self._params.replicas).split([tensor.numel() for tensor in shared])
        for tensor, mean in zip(shared, means, strict=True):
            tensor.copy_(mean.view(tensor.shape))

    # The tutorial's protocol.

    def offer(self) -> "rpc.RRef[TutorialShard]":
        """The shard, for calls by the tutorial's protocol."""
        self._seed_shard = TutorialShard(self._shard, self._params.micro_batches)
        return rpc.RRef(self._seed_shard)

    def hold(self, epoch: int, step: int) -> None:
        """At the first stage: have batch `step` of `epoch` ready for the tutorial's protocol."""
        images, labels = self._batches.at(epoch, step)
        self._seed_shard.hold(self._normalized(images), labels)

    # Scores, checkpoints, export.

    def evaluate(self, split: str, images: int) -> Scores | None:
        """Score this replica's share of a split that has so many `images`; at a last stage the scores."""
        share = share_of(images, self._replica, self._params.replicas)
        with self._shard.inference():
            if self._is_first:
                self._feed_scoring(split, share)
            else:
                self._follow_scoring(-(-(share.stop - share.start) // self._params.micro_batch_size))
        self._flush()
        return self._scorer.scores() if self._is_last else None

    def _feed_scoring(self, split: str, share: slice) -> None:
        data = self._params.data
        batches = eval_batches(
            self._splits[split], share, bring_to_size(data.size), self._params.micro_batch_size, data.loader_processes
        )
        for number, (images, labels) in enumerate(batches):
            self._outboxes[self._stages - 1].send("labels", number, labels)
            self._outboxes[self._place + 1].send(
                "activation", number, self._shard.compute(self._normalized(images)), ahead=_AHEAD
            )

    def _follow_scoring(self, micro_batches: int) -> None:
        for number in range(micro_batches):
            outputs = self._shard.compute(inbox.take(("activation", number)))
            if self._is_last:
                self._scorer.add(outputs, inbox.take(("labels", number)))
            else:
                self._outboxes[self._place + 1].send("activation", number, outputs, ahead=_AHEAD)

    def save(self, step: int) -> CheckpointPart:
        """Write this stage's part of the checkpoint after `step`; replicas are alike, the first one's is enough."""
        return self._context.checkpoints.save_part(step, f"stage-{self._place}", self._shard.state())

    def load(self, manifest: CheckpointManifest) -> None:
        """Go back to `manifest`. The cuts may lie elsewhere than when it was written, so look into every part."""
        tensors: dict[str, torch.Tensor] = {}
        for part in manifest.parts:
            tensors |= self._context.checkpoints.load_part(manifest, part.name)
        self._shard.restore(tensors)

    def dismiss(self, reason: Literal["done", "stopped"]) -> None:
        """Leave the gang after this order."""
        self.dismissed = reason

    def weights(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers, by their names in the whole model."""
        return self._shard.weights()
