# pyright: standard
"""The policy's fast passes, and updates of the learner; `tests/numerics` has whole trainings."""

from typing import Any

import pytest
import torch
from tests.kit.policy_gradients.test_transitions import trajectory
from torch import Tensor

from rolecall.kit.policy_gradients.policies import AutogradPolicy, MlpPolicy
from rolecall.workloads.reinforce.build import Learner, differentiable, new_policy, outputs_of
from rolecall.workloads.reinforce.model import GaussianHead, Policy
from rolecall.workloads.reinforce.params import Params

CHOICE, BOX = {"count": 2, "start": 0}, {"shape": [2], "low": [None, None], "high": [None, None]}
TUTORIAL = {"protocol": "tutorial", "policy_at": "agent", "environments": 1}
DROPOUT = {"name": "mlp", "hidden": [8], "dropout": 0.5}
SHARED = {"name": "custom", "builder": "tests.workloads.reinforce.playgrounds:Shared", "arguments": {"width": 5}}


def params(**given: Any) -> Params:
    return Params.model_validate(
        {"environment": "CartPole-v1", "algorithm": "reinforce", "precision": "float64", **given}
    )


def policy(action: dict[str, Any] = CHOICE, **given: Any) -> Policy:
    return new_policy(params(**given), {"observation": {"shape": [3]}, "action": action})


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@torch.no_grad()
def test_the_fast_passes_give_what_the_policy_gives(activation: str, precision: str) -> None:
    network = {"name": "mlp", "hidden": [8], "activation": activation, "initialization": "uniform"}
    made, observations = policy(policy=network, precision=precision, normalize_observations=True), torch.randn(40, 3)
    assert made.normalizer is not None
    made.normalizer.update(5 * observations + 2)
    torch.testing.assert_close(outputs_of(made)(observations), made.outputs(observations))
    torch.testing.assert_close(differentiable(made).values(observations), made.values(observations))


@torch.no_grad()
def test_dropout_is_part_of_the_fast_outputs_and_of_an_update() -> None:
    made, observations = policy(policy=DROPOUT, **TUTORIAL).train(), torch.ones(100, 3)
    outputs = outputs_of(made)
    seeded: list[Tensor] = []
    for compute in (outputs, made.outputs, outputs):
        torch.manual_seed(2 if len(seeded) < 2 else 3)
        seeded.append(compute(observations))
    torch.testing.assert_close(seeded[0], seeded[1])
    assert not torch.equal(seeded[0], seeded[2])
    updated, _ = differentiable(made).forward(observations)
    assert len({tuple(row) for row in updated.tolist()}) > 1


def test_only_the_built_in_network_without_dropout_is_differentiated_in_closed_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ROLECALL_BUILDERS", "tests.workloads.reinforce")
    assert isinstance(differentiable(policy()), MlpPolicy)
    assert isinstance(differentiable(policy(policy=DROPOUT, **TUTORIAL)), AutogradPolicy)
    assert isinstance(differentiable(policy(policy=SHARED)), AutogradPolicy)


@pytest.mark.parametrize("network", ["mlp", SHARED], ids=["mlp", "custom"])
def test_the_deviation_of_continuous_actions_is_learned(
    network: str | dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLECALL_BUILDERS", "tests.workloads.reinforce")
    made = policy(BOX, policy=network)
    assert isinstance(made.head, GaussianHead)
    assert differentiable(made).log_deviation is made.head.log_deviation
    assert differentiable(policy(policy=network)).log_deviation is None


@pytest.mark.parametrize("network", ["mlp", SHARED], ids=["mlp", "custom"])
def test_rewards_and_observations_are_normalized_in_an_update(
    network: str | dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update uses the statistics of the rewards with its own, and those of the observations before it."""
    monkeypatch.setenv("ROLECALL_BUILDERS", "tests.workloads.reinforce")
    chosen = params(policy=network, normalize_rewards=True, normalize_observations=True)
    learner = Learner(chosen, {"observation": {"shape": [3]}, "action": CHOICE}, torch.device("cpu"))
    seen = torch.randn(4, 2, 3, dtype=torch.float64)
    made = trajectory(seen, is_cut=False)
    made.agent_outputs.actions.fill_(0)
    with torch.no_grad():
        values = learner.policy.values(made.agent_outputs.observations)
    # Sums of past rewards: 1 in the first environment; 2, 2γ + 4, … in the second one.
    gamma = chosen.algorithm.gamma
    sums = torch.tensor([1.0, 2.0, 2 * gamma + 4, (2 * gamma + 4) * gamma + 8], dtype=torch.float64)
    scale = (sums.var(correction=0) + 1e-8).rsqrt()
    returns = torch.tensor([1.0, 2 + gamma * (4 + gamma * 8), 4 + gamma * 8, 8.0], dtype=torch.float64) * scale

    losses = learner.train(1, {0: made}, 1.0)
    assert losses["value_loss"] == pytest.approx(float((values - returns).square().mean() / 2), abs=1e-12)
    assert learner.policy.normalizer is not None
    torch.testing.assert_close(learner.policy.normalizer.mean, made.agent_outputs.observations.mean(0))
