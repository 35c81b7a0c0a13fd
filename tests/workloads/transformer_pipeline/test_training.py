# pyright: standard
"""The reports of steps and epochs."""

import math
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from rolecall.kit.grid import make_grid
from rolecall.workloads.transformer_pipeline.training import Training, micro_batch_metrics


def test_at_most_16_micro_batches_have_metrics_of_their_own() -> None:
    few, many = micro_batch_metrics(torch.arange(16.0)), micro_batch_metrics(torch.arange(17.0))
    extremes = {"micro_batch_loss_min": 0.0, "micro_batch_loss_max": 15.0}
    each = {f"micro_batch_{number}_loss": float(number) for number in range(16)}
    assert {name: float(value) for name, value in few.items()} == each | extremes
    assert {name: float(value) for name, value in many.items()} == extremes | {"micro_batch_loss_max": 16.0}


def test_the_perplexity_is_as_exact_as_the_loss() -> None:
    corpus = SimpleNamespace(tokens=lambda _: np.arange(9), targets=lambda _: None)
    training: Any = SimpleNamespace(
        _corpus=corpus, params=SimpleNamespace(context=4), _mean_loss=lambda sequences: 100.0 * len(sequences)
    )
    scores = Training.evaluate(training, "test")
    assert scores == {"test_loss": 200.0, "test_perplexity": math.exp(200)}


class _Meter:
    """The measurements of a rank that waits neither for neighbors nor for the end of a step."""

    def __init__(self) -> None:
        self.durations, self.compute_times, self.spans = array("d"), array("d"), array("d")

    def add(self, duration: float, compute: float) -> None:
        self.durations.append(duration)
        self.compute_times.append(compute)
        self.spans.append(duration)


def test_an_epochs_bubble_is_that_of_its_steps_without_the_first_one_of_the_attempt(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=(tmp_path / "store").as_uri(), rank=0, world_size=1)
    try:
        meter = _Meter()
        pipeline = SimpleNamespace(meter=meter)
        training: Any = SimpleNamespace(_pipeline=pipeline, _grid=make_grid(1, torch.device("cpu")), _epoch_begin=0)
        meter.add(100.0, 0.0)
        assert Training.epoch_metrics(training) == {}
        meter.add(10.0, 6.0)
        meter.add(10.0, 8.0)
        assert Training.epoch_metrics(training) == {"bubble": pytest.approx(0.3)}
        meter.add(10.0, 9.0)
        assert Training.epoch_metrics(training) == {"bubble": pytest.approx(0.1)}
    finally:
        dist.destroy_process_group()


def test_a_stage_finds_a_weight_that_is_not_finite() -> None:
    layer = torch.nn.Linear(2, 2)
    training: Any = SimpleNamespace(_parameters=lambda: list(layer.parameters()))
    assert Training.has_finite_weights(training)
    torch.nn.init.constant_(layer.bias, torch.nan)
    assert not Training.has_finite_weights(training)
