"""Metrics of a split by torchmetrics, at the last stage."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy


@dataclass(frozen=True, slots=True)
class ImageMetrics:
    """Metrics of `images` images."""

    images: int
    loss: float
    """The mean cross-entropy, in nats."""
    accuracy: float
    """Top-1 accuracy."""

    def named(self, split: str) -> dict[str, float]:
        """The metrics by their names in a job's result, such as `test_accuracy`."""
        return {f"{split}_loss": self.loss, f"{split}_accuracy": self.accuracy}


def merge(parts: Sequence[ImageMetrics]) -> ImageMetrics:
    """The metrics of all images, from the metrics of disjoint subsets."""
    images = sum(part.images for part in parts)
    loss, accuracy = (
        sum(part.images * getattr(part, name) for part in parts) / images for name in ("loss", "accuracy")
    )
    return ImageMetrics(images, loss, accuracy)


class ImageMetricsAccumulator:
    """Accumulates metrics batch by batch."""

    def __init__(self, classes: int, device: torch.device) -> None:
        # The process group has all stages, but only the last ones compute metrics.
        self._accuracy = MulticlassAccuracy(classes, average="micro", sync_on_compute=False).to(device)
        self._loss = MeanMetric(sync_on_compute=False).set_dtype(torch.float64).to(device)
        self._images = 0

    def add(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Logits [b, classes] and labels [b]."""
        target = labels.to(logits.device)
        self._accuracy.update(logits, target)
        self._loss.update(F.cross_entropy(logits.double(), target, reduction="none"))
        self._images += len(labels)

    def compute(self) -> ImageMetrics:
        """The metrics since the last call, then reset. A replica may have had no images."""
        if not self._images:
            return ImageMetrics(0, 0.0, 0.0)
        found = ImageMetrics(self._images, float(self._loss.compute()), float(self._accuracy.compute()))
        self._accuracy.reset()
        self._loss.reset()
        self._images = 0
        return found
