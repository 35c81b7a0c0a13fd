# pyright: standard, reportPrivateImportUsage=false
"""The driver's loop: `1f1b` only calls all stages for each step, `tutorial` computes with their parts of the model."""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.distributed.autograd as dist_autograd
from torch.distributed import rpc
from torch.distributed.optim import DistributedOptimizer

from rolecall.kit import CheckpointManifest, CheckpointPart, InputError, Role
from rolecall.kit.declarations import BUBBLE
from rolecall.kit.loop import EvalSplit, TrainingLoop
from rolecall.kit.meter import Bubble
from rolecall.kit.metrics import ClassMetricsAccumulator, merge
from rolecall.kit.optimizers import dense_optimizer
from rolecall.kit.pipelining import best_cuts, listed
from rolecall.kit.same_input import require_same
from rolecall.kit.worker import WorkerContext, worker_name
from rolecall.kit.worker import call as rpc_call
from rolecall.workloads.resnet_pipeline.build import SAMPLE_LOSSES, Dataset, DatasetInfo, given_cuts, mean_loss
from rolecall.workloads.resnet_pipeline.export import write_export
from rolecall.workloads.resnet_pipeline.params import Params, block_names
from rolecall.workloads.resnet_pipeline.remote import RemotePipeline, TutorialShard
from rolecall.workloads.resnet_pipeline.stage import PipelineStage, StageStep, execute


class Stages:
    """The worker names of all stages, by replica and index."""

    def __init__(self, stages: int, replicas: int) -> None:
        names = [worker_name(Role.STAGE, rank) for rank in range(stages)]
        self.all = names
        self.pipelines = [names[replica * stages // replicas :][: stages // replicas] for replica in range(replicas)]
        self.first_stages = [pipeline[0] for pipeline in self.pipelines]


def call(names: Sequence[str], method: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Call a method of `PipelineStage` on these stages concurrently. Returns the results in order.

    Has no timeout: steps may be long, and a stage that dies closes its connection.
    """
    return torch.futures.wait_all([rpc_call(name, execute, method, *arguments, timeout=0) for name in names])


class PipelineTraining(TrainingLoop[int, Params]):
    """The loop of protocol `1f1b`. A batch is the number of a step in its epoch; the first stages load its images, and
    no image, activation or gradient passes through the driver.
    """

    def __init__(self, context: WorkerContext[Params]) -> None:
        super().__init__(context)
        params = context.params
        self._stages = Stages(context.count(Role.STAGE), params.replicas)
        self._bubble = Bubble()
        self._info = self._open_images()
        if (images := self._info.images["train"]) < params.batch_size:
            raise InputError(f"there are only {images} training images; set batch_size to at most that number")
        self._build()

    def run(self) -> dict[str, float] | None:
        """As `TrainingLoop.run`, then shuts down all stages."""
        result = super().run()
        call(self._stages.all, PipelineStage.shutdown, "done" if result is not None else "stopped")
        return result

    def _open_images(self) -> DatasetInfo:
        """Open the images on all first stages, and check that they are the same on all of them."""
        found: list[DatasetInfo] = call(self._stages.first_stages, PipelineStage.open)
        require_same(dict(zip(self._stages.first_stages, found, strict=True)), "images")
        return found[0]

    def _build(self) -> None:
        model, classes = self.params.model, len(self._info.classes)
        blocks: dict[str, bool]
        if isinstance(model, str):
            blocks = dict.fromkeys(block_names(model), True)
        else:
            blocks = call(self._stages.first_stages[:1], PipelineStage.blocks, classes)[0]
        names, cuts = tuple(blocks), self._cuts(blocks)
        partition = [names[begin:end] for begin, end in pairwise([0, *cuts, len(names)])]
        self._build_parts(partition, classes)
        self.context.report.event(f"cut before {', '.join(names[cut] for cut in cuts)}")

    def _build_parts(self, partition: list[tuple[str, ...]], classes: int) -> None:
        """Build the model's parts on the stages; `partition` has the block names of each part."""
        call(self._stages.all, PipelineStage.build, partition, classes)

    def _cuts(self, blocks: dict[str, bool]) -> list[int]:
        """The first block of every stage but the first, as given or from measured costs.

        `blocks` is the result of `blocks_with_weights`.
        """
        stages, trained = len(self._stages.pipelines[0]), [name for name, has_weights in blocks.items() if has_weights]
        if stages > len(trained):
            raise InputError(
                f"{stages} stages need as many blocks with weights, but the model has {len(trained)}: "
                f"{listed(trained)}; use fewer stages, or return an nn.Sequential with more such children"
            )
        if self.params.cuts is not None:
            return given_cuts(self.params, blocks)
        costs: list[list[float]] = call(self._stages.all, PipelineStage.measure, len(self._info.classes))
        # Replicas synchronize after every step, so the slowest replica determines the cost at each index.
        slowest = [[max(block) for block in zip(*costs[index::stages], strict=True)] for index in range(stages)]
        # Every stage needs weights, so blocks without any stay with the block before them.
        names = tuple(blocks)
        starts = [0, *(names.index(name) for name in trained[1:])]
        bounds = list(pairwise([*starts, len(names)]))
        cuts = best_cuts([[sum(stage[begin:end]) for begin, end in bounds] for stage in slowest])
        return [starts[cut] for cut in cuts]

    @property
    def steps_per_epoch(self) -> int:
        """Full batches in one pass; the last incomplete batch is dropped."""
        return self._info.images["train"] // self.params.batch_size

    def batches(self, epoch: int, done: int) -> Iterator[int]:
        return iter(range(done, self.steps_per_epoch))

    def samples(self, batch: int) -> int:
        return self.params.batch_size

    def train_step(self, batch: int) -> float:
        begin = time.perf_counter()
        with self.context.timeline.span("stages", "wait"):
            number, epoch = self.position.step + 1, self.position.epoch
            steps: list[StageStep] = call(self._stages.all, PipelineStage.train, number, epoch, batch, self.rate_factor)
        self._bubble.add(time.perf_counter() - begin, [step.compute_s for step in steps])
        return sum(step.loss for step in steps) / self.params.replicas

    def epoch_metrics(self) -> dict[str, float]:
        """The measured bubble of this attempt's steps of the epoch, if any but the attempt's first."""
        bubble = self._bubble.take()
        return {} if bubble is None else {BUBBLE.name: bubble}

    def evaluate(self, split: EvalSplit) -> dict[str, float] | None:
        images = self._info.images.get(split, 0)
        if not images:
            return None
        results = call(self._stages.all, PipelineStage.evaluate, split, images)
        return merge([metrics for metrics in results if metrics is not None]).named(split)

    def has_finite_weights(self) -> bool:
        """False if a stage of the first replica has a weight that is NaN or infinite; all replicas are equal."""
        return all(call(self._stages.pipelines[0], PipelineStage.has_finite_weights))

    def save_parts(self, step: int) -> list[CheckpointPart]:
        """The parts of the first replica's stages; all replicas are equal."""
        return call(self._stages.pipelines[0], PipelineStage.save, step)

    def load(self, manifest: CheckpointManifest) -> None:
        call(self._stages.all, PipelineStage.load, manifest)

    def export(self) -> None:
        parts = call(self._stages.pipelines[0], PipelineStage.weights)
        weights = {name: value for part in parts for name, value in part.items()}
        path = write_export(self.context.workdir.scratch, self.params, self._info.classes, weights)
        self.context.artifacts.put(path.name, path)


class TutorialTraining(PipelineTraining):
    """The loop of protocol `tutorial`: the driver reads the images, and computes the loss and the scores."""

    def _open_images(self) -> DatasetInfo:
        self._dataset = Dataset(self.params, replica=0, device=self.context.device)
        return self._dataset.info

    def _build_parts(self, partition: list[tuple[str, ...]], classes: int) -> None:
        """Create the shards on the stages, which also serve their checkpoints and exports, and the optimizer."""
        stages = zip(self._stages.all, partition, strict=True)
        shards = [
            rpc.remote(name, TutorialShard, args=(self.params, classes, blocks), timeout=0) for name, blocks in stages
        ]
        for name, shard in zip(self._stages.all, shards, strict=True):
            call([name], PipelineStage.adopt, shard)
        self._model = RemotePipeline(shards, self.params.micro_batch_size)
        chosen = dense_optimizer(self.params.optimizer)
        self._optimizer = DistributedOptimizer(chosen.kind, self._model.parameter_rrefs(), **chosen.remote_arguments)

    def train_step(self, batch: int) -> float:
        images, labels = self._dataset.training_batch(self.position.epoch, batch)
        timeline = self.context.timeline
        with dist_autograd.context() as context_id:
            with timeline.span("forward"):
                loss = mean_loss(self.params, self._model(images), labels)
            # A second call in the same context would wait until the timeout.
            with timeline.span("backward"):
                dist_autograd.backward(context_id, [loss])
            with timeline.span("apply", "communication"):
                self._optimizer.step(context_id)
        return float(loss.detach())

    def evaluate(self, split: EvalSplit) -> dict[str, float] | None:
        if not (images := self._info.images.get(split, 0)):
            return None
        losses = SAMPLE_LOSSES[self.params.loss]
        metrics = ClassMetricsAccumulator(len(self._info.classes), self.context.device, losses)
        self._model.eval()
        for inputs, labels in self._dataset.evaluation_batches(split, slice(images), self.params.batch_size):
            metrics.add(self._model(inputs), labels)
        self._model.train()
        return metrics.compute().named(split)
