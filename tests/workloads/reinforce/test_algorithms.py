"""Properties of one update that tests/numerics does not cover."""

import pytest
import torch

from rolecall.workloads.reinforce import params as spec
from rolecall.workloads.reinforce.algorithms import Ppo, Reinforce, Transitions, update_policy
from rolecall.workloads.reinforce.model import Policy

DESCRIPTION = {
    "observation": {"shape": [3]},
    "action": {"count": 2, "start": 0},
    "policy": {"name": "mlp", "hidden": [8], "activation": "tanh", "dropout": 0.0},
    "normalize": False,
    "precision": "float64",
}


@pytest.fixture
def policy() -> Policy:
    torch.manual_seed(1)
    return Policy(DESCRIPTION)


def transitions(policy: Policy, count: int = 50) -> Transitions:
    """Action 1 is good, action 0 is bad."""
    observations = torch.randn(count, 3, dtype=torch.float64)
    with torch.no_grad():
        actions, log_probs = policy.sample_actions(observations)
        values = policy.values(observations)
    return Transitions(observations, actions, log_probs, values, 2 * actions.double() - 1)


@torch.no_grad()
def probability(policy: Policy, batch: Transitions) -> float:
    return float(policy.outputs(batch.observations).softmax(-1)[:, 1].mean())


@pytest.mark.parametrize(
    "algorithm", [Ppo(spec.Ppo(name="ppo", minibatch_size=16)), Reinforce(spec.Reinforce(name="reinforce"))]
)
def test_good_actions_become_likelier(policy: Policy, algorithm: Ppo | Reinforce) -> None:
    batch = transitions(policy)
    before = probability(policy, batch)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.05)
    losses = update_policy(algorithm, policy, optimizer, batch, max_grad_norm=None)
    assert probability(policy, batch) > before
    assert set(losses) == {"loss", "policy_loss", "value_loss", "entropy", "kl"}


def test_an_update_ends_when_the_policy_has_moved_far(policy: Policy) -> None:
    batch = transitions(policy)
    counted: list[int] = []

    class Counting(Ppo):
        def losses(self, policy: Policy, batch: Transitions):
            counted.append(len(batch))
            return super().losses(policy, batch)

    far = spec.Ppo(name="ppo", minibatch_size=25, epochs=20, target_kl=0.01)
    update_policy(Counting(far), policy, torch.optim.SGD(policy.parameters(), lr=1.0), batch, max_grad_norm=None)
    assert 1 < len(counted) < 40


def test_the_gradient_ends_where_the_ratio_is_clipped(policy: Policy) -> None:
    batch = transitions(policy)
    likelier = Transitions(batch.observations, batch.actions, batch.log_probs - 1, batch.values, batch.advantages)
    ppo = Ppo(spec.Ppo(name="ppo", normalize_advantages=False))
    good, bad = (likelier.select((batch.advantages == sign).nonzero().squeeze(1)) for sign in (1, -1))
    (gradient,) = torch.autograd.grad(ppo.losses(policy, good).policy, policy.network.get_parameter("actor.0.weight"))
    assert not gradient.any()
    (gradient,) = torch.autograd.grad(ppo.losses(policy, bad).policy, policy.network.get_parameter("actor.0.weight"))
    assert gradient.any()


def test_values_move_no_further_than_they_may(policy: Policy) -> None:
    batch = transitions(policy)
    shifted = Transitions(batch.observations, batch.actions, batch.log_probs, batch.values - 3, batch.advantages + 6)
    ppo = Ppo(spec.Ppo(name="ppo", value_clip=0.5))
    expected = 0.5 * (0.5 - batch.advantages - 6).square().mean()
    torch.testing.assert_close(ppo.losses(policy, shifted).value, expected)


def test_a_minibatch_of_one_is_left_out() -> None:
    ppo = Ppo(spec.Ppo(name="ppo", minibatch_size=4, epochs=1))
    assert [len(part) for part in ppo.minibatches(9)] == [4, 4]
