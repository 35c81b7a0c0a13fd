# pyright: reportPrivateUsage=false
"""Tensors are taken in the receiver's order, whatever the order they come in. A job of protocol `tutorial` or `1f1b`
ends when a stage fails or is slow.
"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from rolecall.spec.role import Role
from rolecall.testing.gang import run_gang
from rolecall.workloads.resnet_pipeline.remote import Inbox, Key, _Turns


def test_what_came_early_waits_for_its_turn() -> None:
    inbox = Inbox()
    late = inbox.put(("activation", 1), torch.ones(1))
    early = inbox.put(("activation", 0), torch.zeros(1))
    assert inbox.take(("activation", 0)) == 0
    assert early.done()
    assert not late.done()
    assert inbox.take(("activation", 1)) == 1
    assert late.done()


def test_a_failed_transfer_ends_the_waiting() -> None:
    inbox = Inbox()
    with ThreadPoolExecutor() as threads:
        taken = threads.submit(inbox.take, ("gradient", 0))
        inbox.fail(RuntimeError("too slow"))
        with pytest.raises(RuntimeError, match="too slow"):
            taken.result(timeout=10)


def test_a_taker_waits_for_what_it_wants() -> None:
    inbox = Inbox()
    with ThreadPoolExecutor() as threads:
        taken = threads.submit(inbox.take, ("gradient", 0))
        inbox.put(("activation", 0), torch.zeros(1))
        assert not taken.done()
        inbox.put(("gradient", 0), torch.ones(1))
        assert taken.result(timeout=10) == 1


def test_every_taker_gets_its_own_tensor() -> None:
    """One that waits for another tensor must not use up the wakeup of the taker of a new one."""
    inbox, taken = Inbox(), dict[Key, torch.Tensor]()
    keys: list[Key] = [("gradient", 0), ("activation", 0), ("labels", 0)]

    def take(key: Key) -> None:
        taken[key] = inbox.take(key)

    takers = [threading.Thread(target=take, args=(key,), daemon=True) for key in keys]
    for number, taker in enumerate(takers, 1):
        taker.start()
        while len(inbox._changed._waiters) < number:  # type: ignore[attr-defined] - those that wait, in their order
            time.sleep(0.001)
    inbox.put(keys[1], torch.ones(1))
    takers[1].join(10)
    assert taken == {keys[1]: 1}
    inbox.put(keys[2], torch.zeros(1))
    inbox.put(keys[0], torch.zeros(1))
    for taker in takers:
        taker.join(10)
    assert taken.keys() == set(keys)


THEIRS = """
import time
from torch import nn

class Broken(nn.Module):
    calls = 0

    def forward(self, features):
        Broken.calls += 1
        if Broken.calls == 2:
            raise ValueError("a broken layer")
        return features

class Slow(nn.Module):
    def forward(self, features):
        time.sleep(60)
        return features

def broken(classes):
    first = nn.Sequential(nn.Conv2d(3, 4, 16), Broken())
    return nn.Sequential(first, nn.Sequential(nn.Flatten(), nn.Linear(4, classes)))

def slow(classes):
    return nn.Sequential(nn.Conv2d(3, 4, 16), nn.Sequential(nn.Flatten(), Slow(), nn.Linear(4, classes)))
"""


def run(folder: Path, model: str, **changes: Any) -> None:
    (folder / "plugins").mkdir()
    (folder / "plugins" / "their_layers.py").write_text(THEIRS)
    params = {
        "data": {"synthetic": {"images": 8, "classes": 3}, "size": 16, "validation": 0.0, "loader_processes": 0},
        "model": {"builder": f"their_layers:{model}"},
        "cuts": ["1"],
        "batch_size": 8,
        "max_steps": 1,
        **changes,
    }
    roles = {Role.MASTER: 1, Role.STAGE: 2}
    environment = {"ROLECALL_PLUGINS": str(folder / "plugins")}
    run_gang("resnet-pipeline", params, roles, folder / "gang", timeout_s=90, environment=environment)


@pytest.mark.slow
def test_an_error_at_a_stage_ends_the_attempt_at_once(tmp_path: Path) -> None:
    """The micro-batches after the failed one don't wait for it at the later stages."""
    with pytest.raises(AssertionError, match="a broken layer"):
        run(tmp_path, "broken", protocol="tutorial")


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["1f1b", "tutorial"])
def test_a_call_that_takes_too_long_ends_the_attempt_and_names_the_parameter(tmp_path: Path, protocol: str) -> None:
    expected = r"CallTimeout: an RPC call took longer than rpc.timeout_s = 5 seconds; set rpc.timeout_s to more than"
    with pytest.raises(AssertionError, match=expected):
        run(tmp_path, "slow", protocol=protocol, rpc={"timeout_s": 5})


def test_threads_compute_in_turn() -> None:
    turns = _Turns()
    order: list[int] = []

    def compute(number: int) -> None:
        with turns.turn(number):
            order.append(number)

    threads = [threading.Thread(target=compute, args=(number,)) for number in (3, 1, 2)]
    for thread in threads:
        thread.start()
    compute(0)
    for thread in threads:
        thread.join(10)
    assert order == [0, 1, 2, 3]
