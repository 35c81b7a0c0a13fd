# pyright: standard
"""Metrics of classifiers and regressions on a split, by torchmetrics."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import BinaryAUROC, MulticlassAccuracy
from torchmetrics.regression import MeanAbsoluteError, MeanSquaredError


def binary_metrics(
    split: str, batches: Iterable[tuple[torch.Tensor, torch.Tensor]], device: torch.device
) -> dict[str, float]:
    """Area under the ROC curve, mean cross-entropy in nats and accuracy at threshold 0.5, such as `test_auc`.

    `batches` has the (logits [b], labels [b]) of this worker; a collective of the default process group.
    """
    auc = BinaryAUROC().to(device)
    means = {name: MeanMetric().set_dtype(torch.float64).to(device) for name in ("loss", "accuracy")}
    for logits, labels in batches:  # A worker's share of a batch may be empty, which `BinaryAccuracy` does not accept.
        target = labels.to(logits.device)
        auc.update(logits.double().sigmoid(), target.long())
        losses = F.binary_cross_entropy_with_logits(logits.double(), target.double(), reduction="none")
        means["loss"].update(losses)
        means["accuracy"].update(((logits > 0) == target.bool()).double())
    computed = {"auc": auc.compute()} | {name: mean.compute() for name, mean in means.items()}
    return {f"{split}_{name}": float(value) for name, value in computed.items()}


def class_metrics(
    split: str, batches: Iterable[tuple[torch.Tensor, torch.Tensor]], device: torch.device
) -> dict[str, float]:
    """Mean cross-entropy in nats and top-1 accuracy of a classifier into several classes, such as `test_accuracy`.

    `batches` has the (logits [b, classes], labels [b]) of this worker; a collective of the default process group.
    """
    means = {name: MeanMetric().set_dtype(torch.float64).to(device) for name in ("loss", "accuracy")}
    for logits, labels in batches:
        target = labels.to(logits.device)
        means["loss"].update(F.cross_entropy(logits.double(), target, reduction="none"))
        means["accuracy"].update((logits.argmax(1) == target).double())
    return {f"{split}_{name}": float(mean.compute()) for name, mean in means.items()}


def regression_metrics(
    split: str,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    loss: Callable[..., torch.Tensor],
    device: torch.device,
) -> dict[str, float]:
    """Mean `loss`, root mean squared error and mean absolute error of a regression, such as `test_rmse`.

    `batches` has the (predictions [b], numbers [b]) of this worker; a collective of the default process group.
    """
    errors = MetricCollection({"rmse": MeanSquaredError(squared=False), "mae": MeanAbsoluteError()})
    errors = errors.set_dtype(torch.float64).to(device)
    mean_loss = MeanMetric().set_dtype(torch.float64).to(device)
    for predictions, numbers in batches:
        target = numbers.to(predictions.device).double()
        errors.update(predictions.double(), target)
        mean_loss.update(loss(predictions.double(), target, reduction="none"))
    computed = errors.compute() | {"loss": mean_loss.compute()}
    return {f"{split}_{name}": float(computed[name]) for name in ("loss", "rmse", "mae")}


@dataclass(frozen=True, slots=True)
class ClassMetrics:
    """Metrics of a classifier into several classes on `samples` samples."""

    samples: int
    loss: float
    """The mean loss: cross-entropy in nats, or the accumulator's own loss."""
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


def cross_entropies(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The cross-entropy [b], in nats, of logits [b, classes] and labels [b]."""
    return F.cross_entropy(logits, labels, reduction="none")


def one_hot_errors(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean squared error [b] over the classes between outputs [b, classes] and one-hot labels [b]."""
    one_hot = torch.zeros_like(logits).scatter_(1, labels.unsqueeze(1), 1)
    return (logits - one_hot).square().mean(1)


class ClassMetricsAccumulator:
    """Accumulates one worker's metrics batch by batch; not a collective."""

    def __init__(
        self,
        classes: int,
        device: torch.device,
        losses: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = cross_entropies,
    ) -> None:
        self._losses = losses
        self._accuracy = MulticlassAccuracy(classes, average="micro", sync_on_compute=False).to(device)
        self._loss = MeanMetric(sync_on_compute=False).set_dtype(torch.float64).to(device)
        self._samples = 0

    def add(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Logits [b, classes] and labels [b]."""
        target = labels.to(logits.device)
        self._accuracy.update(logits, target)
        self._loss.update(self._losses(logits.double(), target))
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
