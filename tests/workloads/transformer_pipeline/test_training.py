"""What a step reports."""

import torch

from rolecall.workloads.transformer_pipeline.training import micro_batch_metrics


def test_at_most_16_micro_batches_have_metrics_of_their_own() -> None:
    few, many = micro_batch_metrics(torch.arange(16.0)), micro_batch_metrics(torch.arange(17.0))
    extremes = {"micro_batch_loss_min": 0.0, "micro_batch_loss_max": 15.0}
    each = {f"micro_batch_{number}_loss": float(number) for number in range(16)}
    assert {name: float(value) for name, value in few.items()} == each | extremes
    assert {name: float(value) for name, value in many.items()} == extremes | {"micro_batch_loss_max": 16.0}
