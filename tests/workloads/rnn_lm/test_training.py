# pyright: standard
"""The scores of a trainer."""

import math
from types import SimpleNamespace
from typing import Any

from rolecall.workloads.rnn_lm.training import Training


def test_a_diverged_job_has_an_infinite_perplexity() -> None:
    training: Any = SimpleNamespace(_streams={"test": None}, _mean_loss=lambda _: 800.0)
    assert Training.evaluate(training, "test") == {"test_loss": 800.0, "test_perplexity": math.inf}
