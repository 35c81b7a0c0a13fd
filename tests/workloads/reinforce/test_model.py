# pyright: standard
"""Policies: what they see, how they choose, what they hand over."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import Categorical as Reference
from torch.distributions import Independent, Normal

from rolecall.workloads.reinforce.model import CategoricalHead, GaussianHead, Normalizer, Policy

CHOICE = {"count": 3, "start": 1}
BOX = {"shape": [2], "low": [-2.0, 0.0], "high": [2.0, 1.0]}
OPEN = {"shape": [2], "low": [None, None], "high": [None, None]}


def policy(observation: dict[str, Any], action: dict[str, Any], **changes: Any) -> Policy:
    torch.manual_seed(0)
    mlp = {"name": "mlp", "hidden": [8], "activation": "relu", "dropout": 0.0, "initialization": "orthogonal"}
    rest = {"policy": mlp, "normalize": False, "precision": "float64"}
    return Policy({"observation": observation, "action": action, **rest, **changes})


def test_the_initial_weights_are_orthogonal_or_those_of_torch() -> None:
    mlp = {"name": "mlp", "hidden": [8], "activation": "relu", "dropout": 0.0}
    orthogonal, uniform = (
        policy({"shape": [4]}, CHOICE, policy={**mlp, "initialization": one}).network.state_dict()
        for one in ("orthogonal", "uniform")
    )
    first = orthogonal["actor.0.weight"]
    torch.testing.assert_close(first.T @ first, 2 * torch.eye(4, dtype=torch.float64), rtol=0, atol=1e-5)
    assert orthogonal["actor.0.bias"].count_nonzero() == 0
    assert orthogonal["actor.2.weight"].norm(dim=1).max() < 0.02
    torch.manual_seed(0)
    expected = torch.nn.Linear(4, 8).double()
    assert torch.equal(uniform["actor.0.weight"], expected.weight)
    assert torch.equal(uniform["actor.0.bias"], expected.bias)


def test_choices_have_the_probabilities_of_torchs_distribution() -> None:
    head, outputs = CategoricalHead(3, start=0), torch.randn(5, 3, dtype=torch.float64)
    actions, expected = torch.tensor([0, 1, 2, 1, 0]), Reference(logits=outputs)
    torch.testing.assert_close(head.log_probs(outputs, actions), expected.log_prob(actions))
    torch.manual_seed(1)
    drawn = head.sample(outputs[:1].expand(40_000, 3))
    shares = torch.bincount(drawn, minlength=3).double() / len(drawn)
    torch.testing.assert_close(shares, expected.probs[0], rtol=0, atol=0.01)


def test_numbers_have_the_density_of_torchs_distribution() -> None:
    head = GaussianHead(BOX["low"], BOX["high"], [2]).double()
    torch.nn.init.normal_(head.log_deviation)
    outputs, actions = torch.randn(2, 5, 2, dtype=torch.float64).unbind()
    expected = Independent(Normal(outputs, head.log_deviation.exp()), 1)
    torch.testing.assert_close(head.log_probs(outputs, actions), expected.log_prob(actions))
    drawn = head.sample(torch.zeros(40_000, 2, dtype=torch.float64))
    torch.testing.assert_close(drawn.std(0), head.log_deviation.exp(), rtol=0.02, atol=0)


def test_actions_are_brought_to_the_environments_bounds() -> None:
    actions = torch.tensor([[-1.0, 1.0], [0.0, 0.0], [9.0, -9.0]])
    bounded = GaussianHead(BOX["low"], BOX["high"], [2]).to_env_actions(actions)
    assert bounded.tolist() == [[-2, 1], [0, 0.5], [2, 0]]
    infinite = [float("inf")] * 2
    assert GaussianHead([-one for one in infinite], infinite, [2]).to_env_actions(actions).tolist() == actions.tolist()


@pytest.mark.parametrize("observation", [{"shape": [2, 3]}, {"count": 4, "start": 2}], ids=["numbers", "a choice"])
@pytest.mark.parametrize("action", [CHOICE, BOX, OPEN], ids=["choices", "bounded", "open"])
def test_it_acts_on_every_kind_of_space(observation: dict[str, Any], action: dict[str, Any]) -> None:
    playing = policy(observation, action)
    seen: Any = np.ones((2, 3), np.float32) if "shape" in observation else 5
    for deterministic in (True, False):
        chosen = playing.act(seen, deterministic=deterministic)
        if action is CHOICE:
            assert chosen in {1, 2, 3}
        else:
            assert chosen.shape == (2,)


def test_sampled_actions_have_the_log_probs_of_the_network_outputs() -> None:
    playing = policy({"shape": [4]}, BOX, normalize=True)
    observations = torch.randn(6, 4)
    assert playing.normalizer is not None
    playing.normalizer.update(observations)
    actions, log_probs = playing.sample_actions(observations)
    outputs, values = playing.network(playing.normalized(observations))
    torch.testing.assert_close(log_probs, playing.head.log_probs(outputs, actions))
    torch.testing.assert_close(playing.values(observations), values)


def test_a_network_from_a_package() -> None:
    custom = {"name": "custom", "builder": "tests.workloads.reinforce.playgrounds:Shared", "arguments": {"width": 5}}
    playing = policy({"shape": [2, 3]}, CHOICE, policy=custom)
    actions, _ = playing.sample_actions(torch.randn(7, 2, 3))
    values = playing.values(torch.randn(7, 2, 3))
    assert (actions.shape, values.shape, values.dtype) == ((7,), (7,), torch.float64)


def test_statistics_of_chunks_are_those_of_the_whole() -> None:
    seen = torch.randn(50, 3, dtype=torch.float64) * 4 + 2
    normalizer = Normalizer((3,))
    for chunk in seen.split([1, 19, 30]):
        normalizer.update(chunk)
    torch.testing.assert_close(normalizer.mean, seen.mean(0))
    torch.testing.assert_close(normalizer.variance, seen.var(0, correction=0))
    torch.testing.assert_close(normalizer(seen).std(0, correction=0), torch.ones(3, dtype=torch.float64))
