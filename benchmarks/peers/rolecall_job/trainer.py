"""Each trainer holds the whole network and a share of each batch."""

from collections.abc import Iterator

import torch

from benchmarks.peers.training import BATCH, STEPS, Training
from rolecall.kit import CheckpointManifest, CheckpointPart
from rolecall.kit.loop import EvalSplit, TrainingLoop
from rolecall.kit.worker import WorkerContext

from . import Params


def run(context: WorkerContext[Params]) -> None:
    """Train until the measurement stops the job."""
    Loop(context).play()


class Loop(TrainingLoop[int, Params]):
    """The training in Rolecall's loop, which reports progress and writes checkpoints. A batch is the step's number."""

    def __init__(self, context: WorkerContext[Params]) -> None:
        super().__init__(context)
        self._training = Training(lambda line: print(line, flush=True))

    @property
    def steps_per_epoch(self) -> int:
        return STEPS

    def batches(self, epoch: int, done: int) -> Iterator[int]:
        yield from range(done + 1, STEPS + 1)

    def samples(self, batch: int) -> int:
        return BATCH * self.context.world_size

    def train_step(self, batch: int) -> torch.Tensor:
        return self._training.step(batch)

    def evaluate(self, split: EvalSplit) -> dict[str, float] | None:
        return None

    def save_parts(self, step: int) -> list[CheckpointPart]:
        if self.context.rank != 0:
            return []
        return [self.context.checkpoints.save_part(step, "weights", self._training.weights())]

    def load(self, manifest: CheckpointManifest) -> None:
        self._training.load(self.context.checkpoints.load_part(manifest, "weights"))

    def export(self) -> None:
        """Nothing: the measurement stops the job before its end."""
