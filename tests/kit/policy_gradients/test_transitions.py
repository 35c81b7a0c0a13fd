# pyright: standard
"""Transitions of a trajectory whose episodes end at different steps."""

from collections.abc import Callable

import pytest
import torch
from tests.kit.policy_gradients.modules import INPUTS, Actor, Shared, TwoMlps
from torch import nn

from rolecall.kit.environments.rollouts import AgentOutputs, EnvOutputs, Trajectory
from rolecall.kit.policy_gradients.transitions import gather_transitions

GAMMA = 0.5


def trajectory(observations: torch.Tensor, *, is_cut: bool) -> Trajectory:
    """The episode of one environment ends in its first step, that of the other one in its third, by termination.

    The first one is cut off, so that its last observation is recorded, too; or it is terminated.
    """
    valid = torch.tensor([[True, True], [False, True], [False, True]])
    first, last = torch.zeros_like(valid), torch.zeros_like(valid)
    first[0, 0], last[2, 1] = True, True
    acted = valid.clone()
    acted[1, 0] = is_cut
    seen = observations[:3][acted]
    return Trajectory(
        AgentOutputs(seen, torch.arange(len(seen)), torch.zeros(len(seen), dtype=torch.float64)),
        EnvOutputs(
            rewards=torch.tensor([[1.0, 2.0], [0.0, 4.0], [0.0, 8.0]], dtype=torch.float64),
            terminated=last if is_cut else first | last,
            truncated=first if is_cut else torch.zeros_like(valid),
            valid=valid,
            acted=acted,
            last_observation=observations[3],
            episode_returns=torch.tensor([1.0, 14.0]),
            episode_lengths=torch.tensor([1, 3]),
            was_reset=True,
        ),
    )


@pytest.mark.parametrize("in_one_pass", [True, False])
@pytest.mark.parametrize("is_cut", [True, False], ids=["cut off", "terminated"])
@pytest.mark.parametrize("network", [lambda: TwoMlps(8), Shared], ids=["mlp", "any network"])
def test_only_a_return_that_is_cut_off_has_the_value_of_the_last_observation(
    network: Callable[[], nn.Module], is_cut: bool, in_one_pass: bool
) -> None:
    actor, observations = Actor(network()), torch.randn(4, 2, INPUTS, dtype=torch.float64)
    with torch.no_grad():
        values = actor(observations.flatten(0, 1))[1].view(4, 2)
    returns = torch.tensor([1.0, 2 + GAMMA * (4 + GAMMA * 8), 4 + GAMMA * 8, 8.0], dtype=torch.float64)
    returns[0] += GAMMA * values[1, 0] * is_cut
    before = torch.stack([values[0, 0], values[0, 1], values[1, 1], values[2, 1]])

    one = trajectory(observations, is_cut=is_cut)
    found, results = gather_transitions(
        actor.differentiable(), [one, one], gamma=GAMMA, gae_lambda=1.0, in_one_pass=in_one_pass
    )
    torch.testing.assert_close(found.values, before.repeat(2))
    torch.testing.assert_close(found.returns, returns.repeat(2))
    assert found.actions.tolist() == ([0, 1, 3, 4] if is_cut else [0, 1, 2, 3]) * 2
    assert (results is not None) == in_one_pass
    if results is not None:
        torch.testing.assert_close(results[1], found.values)


def test_a_network_gets_no_empty_batch() -> None:
    """Many can't compute one, for example those with batch normalization."""
    actor, sizes = Actor(Shared()), []
    actor.network.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    one = trajectory(torch.randn(4, 2, INPUTS), is_cut=False)
    gather_transitions(actor.differentiable(), [one], gamma=GAMMA, gae_lambda=1.0, in_one_pass=True)
    assert sizes == [4]
