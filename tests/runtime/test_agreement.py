"""Ranks that learn of a wish at different moments act on it after the same step."""

from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch.distributed as dist
from tests.clock import ManualClock

from rolecall.runtime.agreement import Agreement, Decision
from rolecall.testing.gang import processes


def _rank(rank: int, store: Path, stop_at: int, checkpoint_at: int, answer: Connection) -> None:
    dist.init_process_group("cpu:gloo", store=dist.FileStore(str(store), 2), rank=rank, world_size=2)
    agreement = Agreement()
    checkpoints: list[int] = []
    for step in range(1, 100_000):
        decision = agreement.after(
            step, lambda step=step: Decision(stop=step >= stop_at, checkpoint=not checkpoints and step >= checkpoint_at)
        )
        if decision.checkpoint:
            checkpoints.append(step)
        if decision.stop:
            answer.send((step, checkpoints))
            break
    dist.destroy_process_group()


@pytest.mark.slow
def test_all_ranks_stop_and_save_after_the_same_step(tmp_path: Path) -> None:
    pipes = [processes.Pipe() for _ in range(2)]
    never = 10**9
    wishes = [(never, never), (50, 20)]
    ranks = [
        processes.Process(target=_rank, args=(rank, tmp_path / "store", *wishes[rank], pipes[rank][1]), daemon=True)
        for rank in range(2)
    ]
    for process in ranks:
        process.start()
    assert all(pipe.poll(60) for pipe, _ in pipes)
    answers = [pipe.recv() for pipe, _ in pipes]
    for process in ranks:
        process.join(30)
    assert answers[0] == answers[1]
    stopped, checkpoints = answers[0]
    assert stopped >= 50
    assert checkpoints[0] >= 20


def test_the_ranks_agree_a_few_times_a_second_at_any_speed() -> None:
    clock = ManualClock()
    agreement = Agreement(clock=clock)
    asked: list[int] = []

    def wish(step: int) -> Decision:
        asked.append(step)
        return Decision()

    for step in range(1, 101):
        clock.now += 0.0625 if step <= 50 else 1.0
        agreement.after(step, lambda step=step: wish(step))
    assert asked[:4] == [1, 5, 9, 13], "four steps of 1/16 s"
    assert asked[-45:] == list(range(56, 101)), "every step of 1 s"
