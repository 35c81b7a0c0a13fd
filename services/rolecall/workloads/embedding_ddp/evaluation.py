"""Metrics of a split over all trainers, by torchmetrics."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC


@dataclass(frozen=True, slots=True)
class BinaryMetrics:
    """Metrics of a split; equal on all trainers."""

    auc: float
    """The area under the ROC curve, in [0, 1]."""
    loss: float
    """The mean binary cross-entropy, in nats."""
    accuracy: float
    """The share of rows classified correctly at threshold 0.5."""

    def named(self, split: str) -> dict[str, float]:
        """The metrics by their names in a job's result, such as `test_auc`."""
        return {f"{split}_auc": self.auc, f"{split}_loss": self.loss, f"{split}_accuracy": self.accuracy}


def compute_metrics(batches: Iterable[tuple[torch.Tensor, torch.Tensor]], device: torch.device) -> BinaryMetrics:
    """The metrics of (logits [b], labels [b]) of all trainers; a collective of the default process group."""
    classification = MetricCollection({"auc": BinaryAUROC(), "accuracy": BinaryAccuracy()}).to(device)
    mean_loss = MeanMetric().set_dtype(torch.float64).to(device)
    for logits, labels in batches:
        target = labels.to(logits.device)
        classification.update(logits.double().sigmoid(), target.long())
        losses = F.binary_cross_entropy_with_logits(logits.double(), target.double(), reduction="none")
        mean_loss.update(losses)
    computed = classification.compute()
    return BinaryMetrics(
        auc=float(computed["auc"]), loss=float(mean_loss.compute()), accuracy=float(computed["accuracy"])
    )
