"""The master's loop: calls all stages for each step. No image, activation or gradient passes through it."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.distributed import rpc

from rolecall.kit.loop import EvalSplit, TrainingLoop
from rolecall.kit.metrics import merge
from rolecall.kit.pipelining import best_cuts
from rolecall.kit.same_input import require_same
from rolecall.kit.worker import WorkerContext, worker_name
from rolecall.spec.errors import InputError
from rolecall.spec.plan import CheckpointManifest, CheckpointPart
from rolecall.spec.role import Role
from rolecall.workloads.resnet_pipeline.export import write_export
from rolecall.workloads.resnet_pipeline.params import Params, block_names, cut_indices
from rolecall.workloads.resnet_pipeline.remote import TutorialPipeline
from rolecall.workloads.resnet_pipeline.stage import DatasetInfo, PipelineStage, execute


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
    calls = [rpc.rpc_async(name, execute, args=(method, *arguments), timeout=0) for name in names]
    return torch.futures.wait_all(calls)


class PipelineTraining(TrainingLoop[int, Params]):
    """The master's loop. A batch is the number of a step in its epoch; the first stages load its images."""

    def __init__(self, context: WorkerContext[Params]) -> None:
        super().__init__(context)
        params = context.params
        self._stages = Stages(context.count(Role.STAGE), params.replicas)
        self._dataset = self._open_datasets()
        self._build()
        self._tutorial: TutorialPipeline | None = None
        if params.protocol == "tutorial":
            self._tutorial = TutorialPipeline(params, call(self._stages.all, PipelineStage.tutorial_ref))

    def run(self) -> dict[str, float] | None:
        """As `TrainingLoop.run`, then shuts down all stages."""
        result = super().run()
        call(self._stages.all, PipelineStage.shutdown, "done" if result is not None else "stopped")
        return result

    def _open_datasets(self) -> DatasetInfo:
        """Open the images on all first stages, and check that they are the same on all of them."""
        found: list[DatasetInfo] = call(self._stages.first_stages, PipelineStage.open)
        require_same(dict(zip(self._stages.first_stages, found, strict=True)), "images")
        if (images := found[0].images["train"]) < self.params.batch_size:
            raise InputError(f"there are only {images} training images; set batch_size to at most that number")
        return found[0]

    def _build(self) -> None:
        model, classes = self.params.model, len(self._dataset.classes)
        names: tuple[str, ...]
        if isinstance(model, str):
            names = block_names(model)
        else:
            names = call(self._stages.first_stages[:1], PipelineStage.block_names, classes)[0]
        cuts = self._cuts(names)
        partition = [names[begin:end] for begin, end in pairwise([0, *cuts, len(names)])]
        call(self._stages.all, PipelineStage.build, partition, classes)
        self.context.report.event(f"cut before {', '.join(names[cut] for cut in cuts)}")

    def _cuts(self, names: tuple[str, ...]) -> list[int]:
        """The first block of every stage but the first, as given or from measured costs."""
        stages, given = len(self._stages.pipelines[0]), self.params.cuts
        if stages > len(names):
            raise InputError(f"{stages} stages can't share {len(names)} blocks; use at most {len(names)}")
        if given is not None:
            return cut_indices(given, names)
        costs: list[list[float]] = call(self._stages.all, PipelineStage.measure, len(self._dataset.classes))
        # Replicas synchronize after every step, so the slowest replica determines the cost at each index.
        slowest = [[max(block) for block in zip(*costs[index::stages], strict=True)] for index in range(stages)]
        return best_cuts(slowest)

    @property
    def steps_per_epoch(self) -> int:
        """Full batches in one pass; the last incomplete batch is dropped."""
        return self._dataset.images["train"] // self.params.batch_size

    def batches(self, epoch: int, done: int) -> Iterator[int]:
        return iter(range(done, self.steps_per_epoch))

    def samples(self, batch: int) -> int:
        return self.params.batch_size

    def train_step(self, batch: int) -> float:
        epoch = self.position.epoch
        if self._tutorial is not None:
            call(self._stages.first_stages, PipelineStage.load_tutorial_batch, epoch, batch)
            return self._tutorial.step()
        losses = call(self._stages.all, PipelineStage.train, epoch, batch, self.rate_factor)
        return sum(losses) / self.params.replicas

    def evaluate(self, split: EvalSplit) -> dict[str, float] | None:
        images = self._dataset.images.get(split, 0)
        if not images:
            return None
        results = call(self._stages.all, PipelineStage.evaluate, split, images)
        return merge([metrics for metrics in results if metrics is not None]).named(split)

    def save_parts(self, step: int) -> list[CheckpointPart]:
        """The parts of the first replica's stages; all replicas are equal."""
        return call(self._stages.pipelines[0], PipelineStage.save, step)

    def load(self, manifest: CheckpointManifest) -> None:
        call(self._stages.all, PipelineStage.load, manifest)

    def export(self) -> None:
        parts = call(self._stages.pipelines[0], PipelineStage.weights)
        weights = {name: value for part in parts for name, value in part.items()}
        path = write_export(self.context.workdir.scratch, self.params, self._dataset.classes, weights)
        self.context.artifacts.put(path.name, path)
