"""The master's side: it drives all stages through the steps; no image, activation or gradient passes through it."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.distributed import rpc

from rolecall.kit.loop import EvalSplit, TrainingLoop
from rolecall.kit.pipelining import best_cuts
from rolecall.kit.same_input import require_same
from rolecall.runtime.context import WorkerContext, worker_name
from rolecall.spec.errors import InputError
from rolecall.spec.plan import CheckpointManifest, CheckpointPart
from rolecall.spec.role import Role
from rolecall.workloads.resnet_pipeline import stage
from rolecall.workloads.resnet_pipeline.evaluation import together
from rolecall.workloads.resnet_pipeline.export import write_export
from rolecall.workloads.resnet_pipeline.params import Params, block_names, places
from rolecall.workloads.resnet_pipeline.pipeline import Inventory, PipelineStage
from rolecall.workloads.resnet_pipeline.tutorial_protocol import TutorialProtocol


class Crew:
    """All stages of a job, by replica and place."""

    def __init__(self, stages: int, replicas: int) -> None:
        names = [worker_name(Role.STAGE, rank) for rank in range(stages)]
        self.all = names
        self.pipelines = [names[replica * stages // replicas :][: stages // replicas] for replica in range(replicas)]

    @property
    def firsts(self) -> list[str]:
        """The first stage of every replica."""
        return [names[0] for names in self.pipelines]


def ask(names: Sequence[str], method: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Have all these stages carry out an order at once; their answers.

    Without a timeout: a step takes as long as it takes, and a stage that dies closes its connection.
    """
    calls = [rpc.rpc_async(name, stage.obey, args=(method, *arguments), timeout=0) for name in names]
    return torch.futures.wait_all(calls)


class PipelineTraining(TrainingLoop[int, Params]):
    """A batch is the number of a step in its epoch; the first stages know what is in it."""

    def __init__(self, context: WorkerContext[Params]) -> None:
        super().__init__(context)
        params = context.params
        self._crew = Crew(context.count(Role.STAGE), params.replicas)
        self._inventory = self._opened()
        self._build()
        self._tutorial = self._tutorial_protocol() if params.protocol == "tutorial" else None

    def run(self) -> dict[str, float] | None:
        """Train to the end and let all stages go; the job's result, or None if the gang was asked to leave."""
        result = super().run()
        ask(self._crew.all, PipelineStage.dismiss, "done" if result is not None else "stopped")
        return result

    def _opened(self) -> Inventory:
        """What the first stages found; each has read the images by itself, so they could differ."""
        found: list[Inventory] = ask(self._crew.firsts, PipelineStage.open)
        require_same(dict(zip(self._crew.firsts, found, strict=True)), "images")
        if (there := found[0].images["train"]) < self.params.batch_size:
            raise InputError(f"there are {there} training images; take a batch_size of at most that many")
        return found[0]

    def _build(self) -> None:
        names = self._block_names()
        cuts = self._cuts(names)
        partition = [names[begin:end] for begin, end in pairwise([0, *cuts, len(names)])]
        ask(self._crew.all, PipelineStage.build, partition, len(self._inventory.classes))
        self.context.report.event(f"cut before {', '.join(names[cut] for cut in cuts)}")

    def _block_names(self) -> tuple[str, ...]:
        if isinstance(self.params.model, str):
            return block_names(self.params.model)
        return ask(self._crew.firsts[:1], PipelineStage.block_names, len(self._inventory.classes))[0]

    def _cuts(self, names: tuple[str, ...]) -> list[int]:
        """The numbers of the blocks with which the second and every later stage begins."""
        stages, given = len(self._crew.pipelines[0]), self.params.cuts
        if stages > len(names):
            raise InputError(f"{stages} stages can't share {len(names)} blocks; take at most {len(names)}")
        if given is not None:
            return places(given, names)
        costs: list[list[float]] = ask(self._crew.all, PipelineStage.measure, len(self._inventory.classes))
        # Replicas wait for one another after every step: at each place the slowest counts.
        slowest = [[max(block) for block in zip(*costs[place::stages], strict=True)] for place in range(stages)]
        return best_cuts(slowest)

    def _tutorial_protocol(self) -> TutorialProtocol:
        return TutorialProtocol(self.params, ask(self._crew.all, PipelineStage.offer))

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches only."""
        return self._inventory.images["train"] // self.params.batch_size

    def batches(self, epoch: int, done: int) -> Iterator[int]:
        """The numbers of the epoch's steps."""
        return iter(range(done, self.steps_per_epoch))

    def samples(self, batch: int) -> int:
        """Every batch is whole."""
        return self.params.batch_size

    def train_step(self, batch: int) -> float:
        """The mean loss over the global batch."""
        epoch = self.position.epoch
        if self._tutorial is not None:
            ask(self._crew.firsts, PipelineStage.hold, epoch, batch)
            return self._tutorial.step()
        losses = ask(self._crew.all, PipelineStage.train, epoch, batch, self.rate_factor)
        return sum(losses) / self.params.replicas

    def evaluate(self, split: EvalSplit) -> dict[str, float] | None:
        """Loss and accuracy."""
        images = self._inventory.images.get(split, 0)
        if not images:
            return None
        answers = ask(self._crew.all, PipelineStage.score, split, images)
        return together([scores for scores in answers if scores is not None]).named(split)

    def save_parts(self, step: int) -> list[CheckpointPart]:
        """One part for each stage of the first replica; the others are equal."""
        return ask(self._crew.pipelines[0], PipelineStage.save, step)

    def load(self, manifest: CheckpointManifest) -> None:
        """All stages of all replicas."""
        ask(self._crew.all, PipelineStage.load, manifest)

    def export(self) -> None:
        """`model.zip`."""
        weights = {
            name: value for part in ask(self._crew.pipelines[0], PipelineStage.weights) for name, value in part.items()
        }
        path = write_export(self.context.workdir.scratch, self.params, self._inventory.classes, weights)
        self.context.artifacts.put(path.name, path)
