"""Scores of a split, by torchmetrics, at the last stage."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy


@dataclass(frozen=True, slots=True)
class Scores:
    """What one pass over some images gives."""

    images: int
    loss: float
    """The mean cross-entropy, in nats."""
    accuracy: float
    """The share of images whose class got the highest probability."""

    def named(self, split: str) -> dict[str, float]:
        """The scores under the names that a job's result has them, e.g. `test_accuracy`."""
        return {f"{split}_loss": self.loss, f"{split}_accuracy": self.accuracy}


def together(parts: Sequence[Scores]) -> Scores:
    """The scores of all images, from those of disjoint parts."""
    images = sum(part.images for part in parts)
    loss, accuracy = (
        sum(part.images * getattr(part, name) for part in parts) / images for name in ("loss", "accuracy")
    )
    return Scores(images, loss, accuracy)


class Scorer:
    """Takes logits batch by batch."""

    def __init__(self, classes: int, device: torch.device) -> None:
        # The stages share a process group, but only the last ones score.
        self._accuracy = MulticlassAccuracy(classes, average="micro", sync_on_compute=False).to(device)
        self._loss = MeanMetric(sync_on_compute=False).set_dtype(torch.float64).to(device)
        self._images = 0

    def add(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Logits [b, classes] and labels [b]."""
        target = labels.to(logits.device)
        self._accuracy.update(logits, target)
        self._loss.update(F.cross_entropy(logits.double(), target, reduction="none"))
        self._images += len(labels)

    def scores(self) -> Scores:
        """Of all that was added since the last time; begins anew. A replica may have had no image to score."""
        if not self._images:
            return Scores(0, 0.0, 0.0)
        found = Scores(self._images, float(self._loss.compute()), float(self._accuracy.compute()))
        self._accuracy.reset()
        self._loss.reset()
        self._images = 0
        return found
