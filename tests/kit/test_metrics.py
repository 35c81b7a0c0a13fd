"""Metrics of classifiers against torch on the whole split."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from rolecall.kit.metrics import (
    ClassMetrics,
    ClassMetricsAccumulator,
    binary_metrics,
    class_metrics,
    merge,
    one_hot_errors,
    regression_metrics,
)

CPU = torch.device("cpu")


def test_parts_of_any_size_make_the_whole() -> None:
    logits = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 0])
    accumulator = ClassMetricsAccumulator(3, CPU)
    parts: list[ClassMetrics] = []
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


def test_the_loss_can_be_the_squared_error() -> None:
    outputs = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 0, 1])
    accumulator = ClassMetricsAccumulator(3, CPU, one_hot_errors)
    for chunk in (slice(0, 4), slice(4, 5)):
        accumulator.add(outputs[chunk], labels[chunk])
    expected = F.mse_loss(outputs.double(), F.one_hot(labels, 3).double())
    assert accumulator.compute().loss == pytest.approx(float(expected))


def test_binary_metrics_rank_and_count() -> None:
    logits, labels = torch.tensor([-2.0, -1.0, 1.0, 2.0]), torch.tensor([0.0, 1.0, 0.0, 1.0])
    parts = [(logits[part], labels[part]) for part in (slice(0, 3), slice(3, 3), slice(3, 4))]
    metrics = binary_metrics("test", parts, CPU)
    loss = float(F.binary_cross_entropy_with_logits(logits.double(), labels.double()))
    assert metrics == pytest.approx({"test_auc": 0.75, "test_loss": loss, "test_accuracy": 0.5})


def test_class_metrics_count_over_batches() -> None:
    logits = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 0])
    parts = [(logits[part], labels[part]) for part in (slice(0, 3), slice(3, 3), slice(3, 7))]
    metrics = class_metrics("test", parts, CPU)
    accuracy = float((logits.argmax(1) == labels).double().mean())
    loss = float(F.cross_entropy(logits.double(), labels))
    assert metrics == pytest.approx({"test_loss": loss, "test_accuracy": accuracy})


def test_regression_metrics_average_over_rows() -> None:
    predictions, numbers = torch.tensor([1.0, 2.0, 5.0]), torch.tensor([1.0, 4.0, 1.0])
    batches = [(predictions[part], numbers[part]) for part in (slice(0, 1), slice(1, 1), slice(1, 3))]
    metrics = regression_metrics("test", batches, F.huber_loss, CPU)
    loss = float(F.huber_loss(predictions.double(), numbers.double()))
    assert metrics == pytest.approx({"test_loss": loss, "test_rmse": (20 / 3) ** 0.5, "test_mae": 2.0})
