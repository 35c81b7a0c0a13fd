"""Metrics of classifiers on a split, by torchmetrics."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC, MulticlassAccuracy


def binary_metrics(
    split: str, batches: Iterable[tuple[torch.Tensor, torch.Tensor]], device: torch.device
) -> dict[str, float]:
    """Area under the ROC curve, mean cross-entropy in nats and accuracy at threshold 0.5, such as `test_auc`.

    `batches` has the (logits [b], labels [b]) of this worker; a collective of the default process group.
    """
    classification = MetricCollection({"auc": BinaryAUROC(), "accuracy": BinaryAccuracy()}).to(device)
    mean_loss = MeanMetric().set_dtype(torch.float64).to(device)
    for logits, labels in batches:
        target = labels.to(logits.device)
        classification.update(logits.double().sigmoid(), target.long())
        losses = F.binary_cross_entropy_with_logits(logits.double(), target.double(), reduction="none")
        mean_loss.update(losses)
    computed = classification.compute() | {"loss": mean_loss.compute()}
    return {f"{split}_{name}": float(computed[name]) for name in ("auc", "loss", "accuracy")}


@dataclass(frozen=True, slots=True)
class ClassMetrics:
    """Metrics of a classifier into several classes on `samples` samples."""

    samples: int
    loss: float
    """The mean cross-entropy, in nats."""
    accuracy: float
    """Top-1 accuracy."""

    def named(self, split: str) -> dict[str, float]:
        """The metrics by their names in a job's result, such as `test_accuracy`."""
        return {f"{split}_loss": self.loss, f"{split}_accuracy": self.accuracy}


def merge(parts: Sequence[ClassMetrics]) -> ClassMetrics:
    """The metrics of all samples, from the metrics of disjoint subsets."""
    samples = sum(part.samples for part in parts)
    loss, accuracy = (
        sum(part.samples * getattr(part, name) for part in parts) / samples for name in ("loss", "accuracy")
    )
    return ClassMetrics(samples, loss, accuracy)


class ClassMetricsAccumulator:
    """Accumulates one worker's metrics batch by batch; not a collective."""

    def __init__(self, classes: int, device: torch.device) -> None:
        self._accuracy = MulticlassAccuracy(classes, average="micro", sync_on_compute=False).to(device)
        self._loss = MeanMetric(sync_on_compute=False).set_dtype(torch.float64).to(device)
        self._samples = 0

    def add(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Logits [b, classes] and labels [b]."""
        target = labels.to(logits.device)
        self._accuracy.update(logits, target)
        self._loss.update(F.cross_entropy(logits.double(), target, reduction="none"))
        self._samples += len(labels)

    def compute(self) -> ClassMetrics:
        """The metrics since the last call, then reset; 0 without samples."""
        if not self._samples:
            return ClassMetrics(0, 0.0, 0.0)
        computed = ClassMetrics(self._samples, float(self._loss.compute()), float(self._accuracy.compute()))
        self._accuracy.reset()
        self._loss.reset()
        self._samples = 0
        return computed
