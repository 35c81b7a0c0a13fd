"""The metrics whose curves `rolecall watch` draws."""

import pytest

from rolecall.cli.exits import CommandError
from rolecall.cli.watch import drawn_metrics
from rolecall.spec.api import MetricDocument
from rolecall.workloads.catalogue import load

ROW = {"attempt": 1, "rank": 0, "role": "trainer", "role_rank": 0, "step": 1, "at": "now", "samples_per_s": 9.0}


def drawn(workload: str, *reported: str, names: tuple[str, ...] = ()) -> list[str]:
    """What is drawn of a workload that reports these metrics."""
    declared = [MetricDocument.model_validate(one, from_attributes=True) for one in load(workload).metrics]
    return drawn_metrics([ROW | dict.fromkeys(reported, 1.0)] if reported else [], names, declared)


def test_the_loss_comes_first_then_what_should_rise() -> None:
    reported = ("loss", "validation_loss", "validation_accuracy", "validation_auc")
    assert drawn("embedding-ddp", *reported) == ["loss", "validation_auc", "validation_accuracy"]
    reported = ("entropy", "env_steps", "episode_return", "evaluation_return", "loss", "policy_loss", "value_loss")
    assert drawn("reinforce", *reported) == ["episode_return", "evaluation_return"]
    assert drawn("rnn-lm", "validation_loss", "loss") == ["loss", "validation_loss"]


def test_losses_of_micro_batches_are_no_scores() -> None:
    reported = ("micro_batch_loss_min", "micro_batch_loss_max", "micro_batch_0_loss", "loss", "bubble")
    assert drawn("transformer-pipeline", *reported) == ["loss", "bubble"]


def test_without_declarations_the_first_metrics_are_drawn() -> None:
    assert drawn("preflight", "b", "a") == ["a", "b", "samples_per_s"]


def test_chosen_metrics_are_drawn_as_soon_as_they_are_reported() -> None:
    chosen = ("validation_auc", "loss")
    assert drawn("embedding-ddp", "loss", names=chosen) == ["loss"]
    assert drawn("embedding-ddp", "loss", "validation_auc", names=chosen) == ["validation_auc", "loss"]
    assert drawn("embedding-ddp", names=chosen) == []
    with pytest.raises(CommandError, match="there is no metric 'auc'"):
        drawn("embedding-ddp", "loss", names=("auc",))
