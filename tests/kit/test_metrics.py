"""Metrics of classifiers against torch on the whole split."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from rolecall.kit.metrics import ClassMetrics, ClassMetricsAccumulator, binary_metrics, merge

CPU = torch.device("cpu")


def test_parts_of_any_size_make_the_whole() -> None:
    logits = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 0])
    accumulator, parts = ClassMetricsAccumulator(3, CPU), []
    for part in (slice(0, 4), slice(4, 7), slice(7, 7)):
        for start in range(part.start, part.stop, 2):
            chunk = slice(start, min(start + 2, part.stop))
            accumulator.add(logits[chunk], labels[chunk])
        parts.append(accumulator.compute())
    assert parts[2] == ClassMetrics(0, 0.0, 0.0)
    whole = merge(parts)
    assert whole.samples == 7
    assert whole.accuracy == pytest.approx(float((logits.argmax(1) == labels).double().mean()))
    assert whole.loss == pytest.approx(float(F.cross_entropy(logits.double(), labels)))
    assert set(whole.named("test")) == {"test_loss", "test_accuracy"}


def test_binary_metrics_rank_and_count() -> None:
    logits, labels = torch.tensor([-2.0, -1.0, 1.0, 2.0]), torch.tensor([0.0, 1.0, 0.0, 1.0])
    metrics = binary_metrics("test", [(logits[:3], labels[:3]), (logits[3:], labels[3:])], CPU)
    loss = float(F.binary_cross_entropy_with_logits(logits.double(), labels.double()))
    assert metrics == pytest.approx({"test_auc": 0.75, "test_loss": loss, "test_accuracy": 0.5})
