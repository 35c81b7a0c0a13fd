# pyright: standard
"""The training loop of a driver without a process group; what is trained here is one number."""

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.clock import ManualClock
from tests.own_process import manifest, worker_context

from rolecall.kit.loop import EvalSplit, TrainingLoop
from rolecall.kit.params import EarlyStopping, TrainingParams
from rolecall.runtime.checkpoint import MissingPart
from rolecall.runtime.context import WorkerContext
from rolecall.spec.errors import InputError, NonFiniteLoss
from rolecall.spec.plan import CheckpointManifest, CheckpointPart
from rolecall.spec.report import ProgressLine, TimeSpent
from rolecall.spec.role import Role
from rolecall.spec.workdir import Workdir


@dataclass
class Trained:
    """The calls of a loop."""

    batches: list[tuple[int, int]] = field(default_factory=list)
    saved: list[int] = field(default_factory=list)
    exported: float | None = None


class Adder(TrainingLoop[tuple[int, int], TrainingParams]):
    """Adds 1 to a number in every step; the validation loss of each epoch is given."""

    def __init__(
        self, context: WorkerContext[TrainingParams], losses: list[float], trained: Trained, clock: ManualClock | None
    ) -> None:
        super().__init__(context, clock=clock or time.monotonic)
        self.clock = clock
        self.number = torch.zeros(())
        self.losses = losses
        self.trained = trained
        self.stop_after: int | None = None
        self.unavailable_at: set[int] = set()

    @property
    def steps_per_epoch(self) -> int:
        return 4

    def batches(self, epoch: int, done: int) -> Iterator[tuple[int, int]]:
        yield from ((epoch, step) for step in range(done, self.steps_per_epoch))

    def train_step(self, batch: tuple[int, int]) -> float:
        self.trained.batches.append(batch)
        self.number += 1
        if self.clock:
            self.clock.sleep(0.5)
        if len(self.trained.batches) == self.stop_after:
            self.context.workdir.stop.write_text("pause")
        return 1.0

    def samples(self, batch: tuple[int, int]) -> int:
        return 10

    def evaluate(self, split: EvalSplit) -> dict[str, float] | None:
        return (
            None
            if split == "test"
            else {"validation_loss": self.losses[min(self.position.epoch, len(self.losses)) - 1]}
        )

    def save_parts(self, step: int) -> list[CheckpointPart]:
        self.trained.saved.append(step)
        part = self.context.checkpoints.save_part(step, "adder", {"number": self.number})
        return [MissingPart(**part.model_dump(), reason="the master is away") if step in self.unavailable_at else part]

    def load(self, manifest: CheckpointManifest) -> None:
        self.number = self.context.checkpoints.load_part(manifest, "adder")["number"]

    def export(self) -> None:
        self.trained.exported = float(self.number)


Make = Callable[..., Adder]


@pytest.fixture
def adder(tmp_path: Path) -> Iterator[Make]:
    """Makes loops whose files lie in the test's folder."""
    with ExitStack() as stack:
        yield lambda **options: _adder(tmp_path, stack, **options)


def _adder(
    folder: Path,
    stack: ExitStack,
    *,
    losses: list[float] | None = None,
    clock: ManualClock | None = None,
    role_rank: int = 0,
    resume_from: CheckpointManifest | None = None,
    **params: Any,
) -> Adder:
    given = TrainingParams(**{"epochs": 3, "checkpoint_every_s": None} | params)
    context = worker_context(
        folder, given, Role.TRAINER, role_rank=role_rank, resume_from=resume_from, clock=clock or time.perf_counter
    )
    return Adder(stack.enter_context(context), losses or [1.0], Trained(), clock)


def test_every_batch_of_every_epoch_is_trained_on_once(adder: Make) -> None:
    loop = adder(clock=ManualClock())
    result = loop.run()
    assert loop.trained.batches == [(epoch, step) for epoch in range(3) for step in range(4)]
    assert loop.trained.exported == 12
    assert result is not None
    assert {name: result[name] for name in ("epochs", "steps", "validation_loss", "samples_per_s", "wall_s")} == {
        "epochs": 3, "steps": 12, "validation_loss": 1.0, "samples_per_s": 20, "wall_s": 6,
    }  # fmt: skip


def test_the_time_after_the_last_step_is_reported_apart(adder: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    loop = adder(epochs=2, clock=clock)
    evaluate, export = loop.evaluate, loop.export

    def slow_evaluate(split: EvalSplit) -> dict[str, float] | None:
        clock.sleep(10 if split == "test" else 1)
        return evaluate(split)

    def slow_export() -> None:
        clock.sleep(5)
        export()

    monkeypatch.setattr(loop, "evaluate", slow_evaluate)
    monkeypatch.setattr(loop, "export", slow_export)
    loop.run()
    *_, last = (json.loads(line) for line in loop.context.workdir.progress.read_text().splitlines())
    assert (last["kind"], last["step"]) == ("step", 8)
    spent = TimeSpent.model_validate(last["spent"])
    assert spent.finish == 16, "the test score, for which the validation data is used, and the export"
    assert spent.evaluation == 2, "those of the epochs"


def test_the_log_has_the_end_of_epochs_every_few_seconds_and_of_the_last(
    adder: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    losses = [0.5, 0.25, 0.125, 0.1, 0.0625]
    adder(epochs=5, losses=losses, clock=ManualClock()).run()
    adder(epochs=1, clock=ManualClock(), role_rank=1).run()
    assert [(record.getMessage(), vars(record)["event"]) for record in caplog.records] == [
        (f"epoch {epoch} of 5 ended: loss 1, validation_loss {losses[epoch - 1]:g}, 20 samples/s", "epoch_ended")
        for epoch in (1, 4, 5)
    ]


def test_the_last_step_may_lie_within_an_epoch(adder: Make) -> None:
    loop = adder(max_steps=6)
    assert loop.steps == 6
    loop.run()
    assert loop.trained.batches[-1] == (1, 1)


def test_checkpoints_come_every_few_steps(adder: Make) -> None:
    loop = adder(checkpoint_every_steps=5)
    loop.run()
    assert loop.trained.saved == [5, 10]


def test_a_checkpoint_at_an_epochs_end_knows_that_the_epoch_is_over(adder: Make, tmp_path: Path) -> None:
    adder(checkpoint_every_steps=4).run()
    assert manifest(tmp_path, 4).position["epoch"] == 1


@pytest.mark.parametrize("step", [5, 8, 10])
def test_a_resumed_loop_continues_with_the_next_batch(adder: Make, tmp_path: Path, step: int) -> None:
    adder(checkpoint_every_steps=step).run()
    resumed = adder(resume_from=manifest(tmp_path, step))
    resumed.run()
    assert resumed.trained.batches == [(epoch, at) for epoch in range(3) for at in range(4)][step:]
    assert resumed.trained.exported == 12


def test_a_pause_leaves_after_a_step_with_a_checkpoint(adder: Make) -> None:
    loop = adder(epochs=1000)
    loop.stop_after = 5
    assert loop.run() is None
    assert loop.trained.exported is None
    assert loop.trained.saved == [loop.position.step]


def test_early_stopping_keeps_the_best_epoch(adder: Make, tmp_path: Path) -> None:
    loop = adder(epochs=9, losses=[3.0, 1.0, 2.0, 2.0, 0.5], early_stopping=EarlyStopping(patience=2))
    loop.run()
    assert loop.position.epoch == 4
    assert loop.trained.exported == 8
    progress = Workdir.of(tmp_path, "job", 1, 0).progress
    assert "early stopping after epoch 4: 2 epochs without a better score" in progress.read_text()
    lines = [ProgressLine.model_validate_json(line) for line in progress.read_text().splitlines()]
    messages = [line.message for line in lines]
    end = messages.index("training ended at step 16; evaluating and exporting the model")
    assert (lines[end - 1].step, lines[end - 1].seconds_left) == (16, 0.0), "not the time of the epochs that it skips"
    adder(epochs=4, losses=[3.0, 1.0, 2.0, 2.0], early_stopping=EarlyStopping(patience=2)).run()
    assert progress.read_text().count("early stopping") == 1, "all its epochs were run"


def test_early_stopping_without_a_score_is_an_error(adder: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = adder(early_stopping=EarlyStopping())
    monkeypatch.setattr(loop, "evaluate", lambda _: None)
    with pytest.raises(InputError, match="early_stopping needs a validation score, but the validation data is empty"):
        loop.run()
    assert loop.position.epoch == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_epoch_without_a_finite_score_is_never_the_best(adder: Make, bad: float) -> None:
    loop = adder(epochs=9, losses=[3.0, 1.0, bad, bad, 0.5], early_stopping=EarlyStopping(patience=2))
    loop.run()
    assert (loop.position.epoch, loop.position.best, loop.trained.exported) == (4, -1.0, 8)


def test_an_accuracy_of_weights_without_a_finite_loss_is_not_the_best(
    adder: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The AUC of scores that are all NaN can be 1."""
    loop = adder(epochs=2, losses=[1.0, math.nan], early_stopping=EarlyStopping())
    monkeypatch.setattr(loop, "objective", lambda _: float(loop.position.epoch))
    loop.run()
    assert loop.trained.exported == 4


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_without_any_finite_score_early_stopping_fails_for_good(adder: Make, bad: float) -> None:
    loop = adder(losses=[bad], early_stopping=EarlyStopping())
    with pytest.raises(NonFiniteLoss, match=f"no finite score after epoch 1: validation_loss {bad}; lower") as caught:
        loop.run()
    assert not caught.value.retryable
    assert not loop.trained.saved


@pytest.mark.parametrize("scores", [{"validation_loss": 1.0}, None])
def test_an_epochs_own_metrics_are_reported_with_its_scores_or_alone(
    adder: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scores: dict[str, float] | None
) -> None:
    loop = adder(max_steps=10)
    monkeypatch.setattr(loop, "evaluate", lambda _: scores)
    monkeypatch.setattr(loop, "epoch_metrics", lambda: {"trained": float(len(loop.trained.batches))})
    loop.run()
    lines = map(json.loads, Workdir.of(tmp_path, "job", 1, 0).progress.read_text().splitlines())
    reported = [line for line in lines if "metrics" in line]
    ends = [(line["step"], line["epoch"], line["metrics"]) for line in reported if "loss" not in line["metrics"]]
    assert ends == [
        (step, epoch, {"trained": float(step)} | (scores or {})) for step, epoch in [(4, 1), (8, 2), (10, 3)]
    ]


def test_an_epoch_whose_weights_were_not_stored_is_not_the_best(adder: Make) -> None:
    loop = adder(epochs=9, losses=[1.0, 0.5, 2.0, 2.0, 2.0], early_stopping=EarlyStopping(patience=2))
    loop.unavailable_at = {8}
    loop.run()
    assert loop.position.epoch == 4
    assert loop.trained.exported == 4


def test_patience_is_not_lost_with_an_attempt(adder: Make, tmp_path: Path) -> None:
    losses, stopping = [3.0, 1.0, 2.0, 2.0, 2.0, 2.0], EarlyStopping(patience=2)
    adder(epochs=9, losses=losses, early_stopping=stopping, checkpoint_every_steps=12).run()
    resumed = adder(epochs=9, losses=losses, early_stopping=stopping, resume_from=manifest(tmp_path, 12))
    resumed.run()
    assert resumed.position.epoch == 4
    assert resumed.trained.exported == 8


@pytest.mark.parametrize("early_stopping", [None, EarlyStopping()])
def test_weights_that_the_last_step_broke_are_not_exported(
    adder: Make, monkeypatch: pytest.MonkeyPatch, early_stopping: EarlyStopping | None
) -> None:
    """With early stopping, those of the best epoch are, which are intact."""
    loop = adder(epochs=2, losses=[1.0, math.nan], early_stopping=early_stopping)
    monkeypatch.setattr(loop, "has_finite_weights", lambda: float(loop.number) < 8)
    if early_stopping:
        loop.run()
        assert loop.trained.exported == 4
        return
    with pytest.raises(NonFiniteLoss, match="weights are NaN or infinite; lower the learning rate") as caught:
        loop.run()
    assert not caught.value.retryable
    assert loop.trained.exported is None
