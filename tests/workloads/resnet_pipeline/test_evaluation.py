"""ImageMetrics of the parts make the score of the whole."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from rolecall.workloads.resnet_pipeline.evaluation import ImageMetrics, ImageMetricsAccumulator, merge

CPU = torch.device("cpu")


def test_parts_of_any_size_make_the_whole() -> None:
    logits = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 0])
    accumulator, parts = ImageMetricsAccumulator(3, CPU), []
    for part in (slice(0, 4), slice(4, 7), slice(7, 7)):
        for start in range(part.start, part.stop, 2):
            chunk = slice(start, min(start + 2, part.stop))
            accumulator.add(logits[chunk], labels[chunk])
        parts.append(accumulator.compute())
    assert parts[2] == ImageMetrics(0, 0.0, 0.0)
    whole = merge(parts)
    assert whole.images == 7
    assert whole.accuracy == pytest.approx(float((logits.argmax(1) == labels).double().mean()))
    assert whole.loss == pytest.approx(float(F.cross_entropy(logits.double(), labels)))
    assert set(whole.named("test")) == {"test_loss", "test_accuracy"}
