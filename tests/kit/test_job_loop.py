"""The loop of a driver without a process group and without epochs, which counts its steps."""

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.clock import ManualClock
from tests.own_process import manifest, worker_context

from rolecall.kit import Params, Stopped
from rolecall.kit.job_loop import JobLoop
from rolecall.runtime.context import WorkerContext
from rolecall.spec.plan import CheckpointManifest, CheckpointPart
from rolecall.spec.role import Role
from rolecall.spec.workdir import Workdir


@dataclass(frozen=True, slots=True)
class Count:
    """The position of a job without epochs."""

    steps: int = 0


class Counter(JobLoop[Count, Params]):
    """Counts to 6, with a checkpoint every 2 steps; stops after 5 if asked to."""

    def __init__(
        self,
        context: WorkerContext[Params],
        *,
        stops: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(context, Count(), clock=clock)
        self.loaded: list[int] = []
        self.stops = stops

    @property
    def step(self) -> int:
        return self.position.steps

    def run(self) -> dict[str, float] | None:
        self.resume()
        while self.step < 6:
            self.position = Count(self.step + 1)
            if self.at_checkpoint_step(2):
                self.save()
            if self.stops and self.step == 5:
                return None
        return {"steps": float(self.step)}

    def save_parts(self, step: int) -> list[CheckpointPart]:
        return [self.context.checkpoints.save_part(step, "counter", {"steps": torch.tensor(step)})]

    def load(self, manifest: CheckpointManifest) -> None:
        self.loaded.append(int(self.context.checkpoints.load_part(manifest, "counter")["steps"]))


def _context(folder: Path, stack: ExitStack, **options: Any) -> WorkerContext[Params]:
    return stack.enter_context(worker_context(folder, Params(), Role.TRAINER, **options))


def test_a_job_loop_keeps_its_own_position_and_reports_its_result(tmp_path: Path) -> None:
    with ExitStack() as stack:
        Counter(_context(tmp_path, stack)).play()
        resumed = Counter(_context(tmp_path, stack, resume_from=manifest(tmp_path, 4)))
        resumed.play()
    assert resumed.loaded == [4]
    assert resumed.position == Count(6)
    lines = Workdir.of(tmp_path, "job", 1, 0).progress.read_text().splitlines()
    events = [json.loads(line) for line in lines]
    assert [line["metrics"] for line in events if line["kind"] == "result"] == [{"steps": 6.0}] * 2
    assert [line["message"] for line in events if line["kind"] == "event"] == ["resumed from the checkpoint at step 4"]


def test_a_position_of_another_release_is_resumed_with_the_fields_that_this_one_has(tmp_path: Path) -> None:
    with ExitStack() as stack:
        Counter(_context(tmp_path, stack)).play()
        other = manifest(tmp_path, 4).model_copy(update={"position": {"steps": 4, "running_return": 9.5}})
        resumed = Counter(_context(tmp_path, stack, resume_from=other))
        resumed.play()
    assert resumed.position == Count(6)


def test_the_time_of_steps_is_split_by_activity_and_counts_earlier_attempts(tmp_path: Path) -> None:
    with ExitStack() as stack:
        Counter(_context(tmp_path, stack)).play()
        earlier = {"steps": 4, "spent": {"steps": 60.0, "data": 30.0, "wait": 20.0}}
        before = manifest(tmp_path, 4).model_copy(update={"position": earlier})
        clock = ManualClock()
        context = _context(tmp_path, stack, resume_from=before, clock=clock)
        resumed = Counter(context)
        with context.timeline.span("read", "data"):
            clock.sleep(3)
        resumed.play()
        spent = resumed.spent()
    assert spent.steps == 63
    assert spent.steps_by_activity == {"compute": 10, "data": 33, "wait": 20, "communication": 0}


def test_a_job_loop_that_stops_has_no_result(tmp_path: Path) -> None:
    with ExitStack() as stack, pytest.raises(Stopped, match="stopped between two steps"):
        Counter(_context(tmp_path, stack), stops=True).play()
    position = manifest(tmp_path, 4).position
    assert position.pop("spent")["checkpoint"] > 0
    assert position == {"steps": 4}


def test_a_checkpoint_is_overdue_by_the_clock_of_the_last_save(tmp_path: Path) -> None:
    with ExitStack() as stack:
        clock = ManualClock()
        loop = Counter(_context(tmp_path, stack), clock=clock)
        clock.sleep(59.0)
        assert not loop.checkpoint_overdue(60.0)
        clock.sleep(1.0)
        assert loop.checkpoint_overdue(60.0)
        assert not loop.checkpoint_overdue(None)
        loop.save()
        clock.sleep(59.0)
        assert not loop.checkpoint_overdue(60.0)
        assert not loop.at_checkpoint_step(None)
