"""Updates from a trajectory whose episodes end at different steps; `tests/numerics` has whole trainings."""

from typing import Any

import pytest
import torch

from rolecall.kit.environments.rollouts import AgentOutputs, EnvOutputs, Trajectory
from rolecall.workloads.reinforce.learner import Learner
from rolecall.workloads.reinforce.params import Params

SPACES = {"observation": {"shape": [3]}, "action": {"count": 2, "start": 0}}
SHARED = {"name": "custom", "builder": "tests.workloads.reinforce.playgrounds:Shared", "arguments": {"width": 5}}
GAMMA = 0.5


def learner(policy: str | dict[str, Any]) -> Learner:
    algorithm = {"name": "reinforce", "gamma": GAMMA, "normalize_advantages": False}
    chosen = {"environment": "CartPole-v1", "algorithm": algorithm, "policy": policy, "precision": "float64"}
    return Learner(Params.model_validate(chosen), SPACES, torch.device("cpu"))


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
        AgentOutputs(seen, torch.zeros(len(seen), dtype=torch.int64), torch.zeros(len(seen), dtype=torch.float64)),
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


@pytest.mark.parametrize("is_cut", [True, False], ids=["cut off", "terminated"])
@pytest.mark.parametrize("policy", ["mlp", SHARED], ids=["mlp", "custom"])
def test_only_a_return_that_is_cut_off_has_the_value_of_the_last_observation(
    policy: str | dict[str, Any], is_cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLECALL_BUILDERS", "tests.workloads.reinforce")
    made, observations = learner(policy), torch.randn(4, 2, 3, dtype=torch.float64)
    with torch.no_grad():
        values = made.policy.values(observations.flatten(0, 1)).view(4, 2)
    returns = torch.tensor([1.0, 2 + GAMMA * (4 + GAMMA * 8), 4 + GAMMA * 8, 8.0], dtype=torch.float64)
    returns[0] += GAMMA * values[1, 0] * is_cut
    errors = torch.stack([values[0, 0], values[0, 1], values[1, 1], values[2, 1]]) - returns

    losses = made.train(1, {0: trajectory(observations, is_cut=is_cut)}, 1.0)
    assert losses["value_loss"] == pytest.approx(float(errors.square().mean() / 2), abs=1e-12)


def test_a_network_gets_no_empty_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many can't compute one, for example those with batch normalization."""
    monkeypatch.setenv("ROLECALL_BUILDERS", "tests.workloads.reinforce")
    made, sizes = learner(SHARED), []
    made.policy.network.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    made.train(1, {0: trajectory(torch.randn(4, 2, 3), is_cut=False)}, 1.0)
    assert sizes == [4]
