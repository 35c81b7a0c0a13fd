# pyright: standard
"""Parameters in one vector: updates and checkpoints are those of the single parameters."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from rolecall.kit.checkpoint import flatten_optimizer, restore_optimizer
from rolecall.kit.flat import as_one_vector, join_state, split_state, step_of

OPTIMIZERS: list[Callable[[Any], torch.optim.Optimizer]] = [
    lambda parameters: torch.optim.Adam(parameters, lr=0.1, weight_decay=0.1, fused=True),
    lambda parameters: torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.1, fused=True),
    lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
]


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("make", OPTIMIZERS, ids=["adam", "adamw", "sgd"])
def test_steps_and_states_are_those_of_the_single_parameters(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    ours, reference = network(), network()
    vector = as_one_vector(ours)
    joint, single = make([vector]), make(reference.parameters())
    for step in range(4):
        for mine, theirs in zip(ours.parameters(), reference.parameters(), strict=True):
            theirs.grad = torch.randn_like(theirs)
            assert mine.grad is not None
            mine.grad.copy_(theirs.grad)
        step_of(joint)()
        single.step()
        torch.testing.assert_close(ours.state_dict(), reference.state_dict(), rtol=0, atol=1e-12)
        if step == 1:  # Continue from a checkpoint, which another optimizer has restored.
            saved = copy.deepcopy(split_state(joint, list(ours.parameters())))
            torch.testing.assert_close(saved, flatten_optimizer(single), rtol=0, atol=1e-12)
            joint, single = make([vector]), make(reference.parameters())
            restore_optimizer(joint, join_state(saved, joint, list(ours.parameters())))
            restore_optimizer(single, copy.deepcopy(saved))
