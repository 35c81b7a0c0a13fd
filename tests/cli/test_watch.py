"""The metrics whose curves `rolecall watch` draws."""

from io import StringIO

import pytest

from rolecall.cli.exits import CommandError
from rolecall.cli.output import Terminal
from rolecall.cli.watch import drawn_metrics, picture
from rolecall.spec.api import MetricDocument
from rolecall.spec.job import JobDocument, Progress
from rolecall.spec.state import JobState
from rolecall.workloads.catalogue import load

ROW = {"attempt": 1, "rank": 0, "role": "trainer", "role_rank": 0, "step": 1, "at": "now", "samples_per_s": 9.0}


def drawn(workload: str, *reported: str, names: tuple[str, ...] = ()) -> list[str]:
    """The charts of a workload that reports these metrics."""
    declared = [MetricDocument.model_validate(one, from_attributes=True) for one in load(workload).metrics]
    return drawn_metrics([ROW | dict.fromkeys(reported, 1.0)] if reported else [], names, declared)


def test_the_loss_comes_first_then_what_should_rise_evaluated_and_in_training() -> None:
    reported = ("loss", "validation_loss", "validation_accuracy", "validation_auc")
    assert drawn("embedding-ddp", *reported) == ["loss", "validation_auc", "validation_accuracy"]
    reported = ("entropy", "env_steps", "episode_return", "evaluation_return", "loss", "policy_loss", "value_loss")
    assert drawn("reinforce", *reported) == ["evaluation_return", "episode_return"]
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
    with pytest.raises(CommandError, match="has reported no metric 'auc'"):
        drawn("embedding-ddp", "loss", names=("auc",))


def test_a_single_value_is_one_line_and_leaves_its_room_to_the_curves() -> None:
    rows = [ROW | {"step": step, "loss": 1 / step} for step in (1, 2)]
    rows[1] |= {"validation_auc": 0.75}
    document = JobDocument.model_construct(
        id="toy-1", name="", state=JobState.RUNNING, waiting_for=None, progress=Progress()
    )
    sent = StringIO()
    terminal = Terminal(file=sent, force_terminal=True, color_system=None, width=60, height=15)
    terminal.print(picture(terminal, document, [], rows, ["loss", "validation_auc"]))
    shown = sent.getvalue().splitlines()
    assert shown[-1] == "validation_auc of trainer-0: 0.7500 at step 2"
    assert [line for line in shown if " of trainer-0: " in line] == ["loss of trainer-0: 0.5000", shown[-1]]
    assert sum("┤" in line for line in shown) == 7, "all but the 5 lines around the curves, 2 of this one and the value"
