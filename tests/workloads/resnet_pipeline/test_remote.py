"""Tensors are taken in the receiver's order, whatever the order they come in."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from rolecall.workloads.resnet_pipeline.remote import Inbox


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
