"""Scores of a split, over all trainers together, by torchmetrics."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC


@dataclass(frozen=True, slots=True)
class Scores:
    """What one pass over a split gives; equal on all trainers."""

    auc: float
    """The area under the ROC curve, 0 to 1."""
    loss: float
    """The mean binary cross-entropy, in nats."""
    accuracy: float
    """The share of rows on the right side of probability 0.5."""

    def named(self, split: str) -> dict[str, float]:
        """The scores under the names that a job's result has them, e.g. `test_auc`."""
        return {f"{split}_auc": self.auc, f"{split}_loss": self.loss, f"{split}_accuracy": self.accuracy}


def score(batches: Iterable[tuple[torch.Tensor, torch.Tensor]], device: torch.device) -> Scores:
    """Score (logits [b], labels [b]) of this trainer's share; a collective of the default process group."""
    ranking = MetricCollection({"auc": BinaryAUROC(), "accuracy": BinaryAccuracy()}).to(device)
    mean_loss = MeanMetric().set_dtype(torch.float64).to(device)
    for logits, labels in batches:
        target = labels.to(logits.device)
        ranking.update(logits.double().sigmoid(), target.long())
        losses = F.binary_cross_entropy_with_logits(logits.double(), target.double(), reduction="none")
        mean_loss.update(losses)
    found = ranking.compute()
    return Scores(auc=float(found["auc"]), loss=float(mean_loss.compute()), accuracy=float(found["accuracy"]))
