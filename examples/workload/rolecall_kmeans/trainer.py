"""A trainer holds every n-th row; all trainers move the centers together (Lloyd, 1982)."""

from collections.abc import Iterator

import pyarrow as pa
import torch
import torch.distributed as dist
from pyarrow import csv
from safetensors.torch import save

from rolecall.kit import CheckpointManifest, CheckpointPart, InputError
from rolecall.kit.export import write_archive
from rolecall.kit.files import find
from rolecall.kit.loop import EvalSplit, TrainingLoop
from rolecall.kit.worker import WorkerContext

from . import Params


def run(context: WorkerContext[Params]) -> None:
    """Find the centers; the first trainer reports the result."""
    Clustering(context).play()


class Clustering(TrainingLoop[torch.Tensor, Params]):
    """One trainer's points, and the centers, which are equal on all trainers."""

    def __init__(self, context: WorkerContext[Params]) -> None:
        super().__init__(context)
        params = context.params
        points = read_points(params)
        self._total = len(points)
        if self._total < params.clusters:
            raise InputError(
                f"{self._total} rows can't form {params.clusters} clusters; set clusters to at most {self._total}"
            )
        # The same seed gives every trainer the same initial centers.
        order = torch.randperm(self._total, generator=torch.Generator().manual_seed(params.seed))
        self.centers = points[order[: params.clusters]].to(context.device)
        self._points = points[context.rank :: context.world_size].to(context.device)

    @property
    def steps_per_epoch(self) -> int:
        """An epoch is one iteration over all points."""
        return 1

    def batches(self, epoch: int, done: int) -> Iterator[torch.Tensor]:
        """All points of this trainer at once."""
        yield self._points

    def samples(self, batch: torch.Tensor) -> int:
        """Points of all trainers."""
        return self._total

    def train_step(self, batch: torch.Tensor) -> torch.Tensor:
        """Move each center to the mean of its nearest points. Returns the mean squared distance before the move."""
        distances, nearest = torch.cdist(batch, self.centers).min(1)
        sums = torch.zeros_like(self.centers).index_add_(0, nearest, batch)
        counts = torch.bincount(nearest, minlength=len(self.centers)).to(sums)
        inertia = distances.square().sum()
        for part in (sums, counts, inertia):
            dist.all_reduce(part)
        empty = counts == 0  # A center without points does not move.
        self.centers = torch.where(empty[:, None], self.centers, sums / counts.clamp(min=1)[:, None])
        return inertia / self._total

    def evaluate(self, split: EvalSplit) -> dict[str, float] | None:
        """No split is held out."""
        return None

    def save_parts(self, step: int) -> list[CheckpointPart]:
        """The first trainer writes the centers, which are equal on all trainers."""
        if self.context.rank != 0:
            return []
        return [self.context.checkpoints.save_part(step, "centers", {"centers": self.centers})]

    def load(self, manifest: CheckpointManifest) -> None:
        """Restore the centers of a checkpoint."""
        self.centers = self.context.checkpoints.load_part(manifest, "centers")["centers"].to(self.context.device)

    def export(self) -> None:
        """The first trainer stores the centers as an artifact."""
        if self.context.rank == 0:
            files = {"centers.safetensors": save({"centers": self.centers.cpu()})}
            self.context.artifacts.put("model.zip", write_archive(self.context.workdir.scratch, "model.zip", files))


def read_points(params: Params) -> torch.Tensor:
    """The points [rows, columns] of all files, float64."""
    tables = []
    for file in find(params.data):
        with file.open() as stream:
            tables.append(csv.read_csv(stream, convert_options=csv.ConvertOptions(include_columns=params.columns)))
    columns = [pa.concat_tables(tables).column(name).cast(pa.float64()) for name in params.columns]
    return torch.stack([torch.from_numpy(column.to_numpy()) for column in columns], 1)
