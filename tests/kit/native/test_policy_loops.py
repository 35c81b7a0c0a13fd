"""The loops read nothing outside of memory. Tests of the workload compare PPO's loss with torch's."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from rolecall.kit.environments import returns
from rolecall.kit.native import library
from rolecall.kit.native.policy_loops import advantages, ppo

SETTINGS = {
    "normalize_advantages": True,
    "clip": 0.2,
    "value_clip": math.inf,
    "value_coefficient": 0.5,
    "entropy_coefficient": 0.01,
}


def columns(**others: torch.Tensor) -> dict[str, Any]:
    names = ("values", "old_log_probs", "old_values", "advantages")
    made = {name: torch.zeros(3) for name in names}
    return {"outputs": torch.zeros(3, 2), "actions": torch.tensor([0, 1, 0]), **made, **others, **SETTINGS}


@pytest.mark.parametrize("action", [-1, 2, 2**40])
def test_actions_that_are_no_choices_are_refused(action: int) -> None:
    with pytest.raises(IndexError, match=f"action {action} is not one of the 2 choices"):
        ppo(**columns(actions=torch.tensor([0, action, 1])))


@pytest.mark.parametrize("name", ["values", "actions", "old_log_probs", "old_values", "advantages"])
def test_other_shapes_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"have the shape \[2\]; it must be \[3\]"):
        ppo(**columns(**{name: torch.zeros(2, dtype=torch.int64 if name == "actions" else torch.float32)}))


def test_equal_choices_have_the_greatest_entropy() -> None:
    terms, outputs, values = ppo(**columns(old_log_probs=torch.full((3,), -math.log(2))))
    torch.testing.assert_close(terms, torch.tensor([0.0, 0.0, math.log(2), 0.0]))
    assert not outputs.any()
    assert not values.any()


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_advantages_have_the_bits_of_torch(precision: torch.dtype) -> None:
    rewards, values = torch.randn(50, 7, dtype=precision), torch.randn(51, 7, dtype=precision)
    ends = torch.randint(0, 9, (50, 7))
    columns = (rewards, values, ends == 0, ends == 1)
    found = advantages(*columns, gamma=0.9, gae_lambda=0.8)
    library.load(Path("none"))
    assert found.equal(returns.advantages(*columns, gamma=0.9, gae_lambda=0.8))


@pytest.mark.parametrize("wrong", [1, 2, 3])
def test_advantages_refuse_other_shapes(wrong: int) -> None:
    columns = [torch.zeros(3, 2), torch.zeros(4, 2), *(torch.zeros(3, 2, dtype=torch.bool) for _ in range(2))]
    columns[wrong] = columns[wrong][1:]
    with pytest.raises(ValueError, match="it must be"):
        advantages(*columns, gamma=0.9, gae_lambda=0.8)
