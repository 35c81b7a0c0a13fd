"""Properties of one update that tests/numerics does not cover."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rolecall.kit.native import library, policy_loops, update_loops
from rolecall.workloads.reinforce import params as spec
from rolecall.workloads.reinforce.algorithms import (
    Algorithm,
    LossGradients,
    Ppo,
    Reinforce,
    Transitions,
    update_policy,
    value_loss,
)
from rolecall.workloads.reinforce.backward import backpropagation, distribution
from rolecall.workloads.reinforce.model import Policy

DESCRIPTION = {
    "observation": {"shape": [3]},
    "action": {"count": 2, "start": 0},
    "policy": {"name": "mlp", "hidden": [8], "activation": "tanh", "dropout": 0.0, "initialization": "orthogonal"},
    "normalize": False,
    "precision": "float64",
}
BOX = {"shape": [2], "low": [None, None], "high": [None, None]}
SHARED = {"name": "custom", "builder": "tests.workloads.reinforce.playgrounds:Shared", "arguments": {"width": 5}}


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
    return Transitions(observations, actions, log_probs, values, (2 * actions - 1).to(values))


def gradients_of(algorithm: Algorithm, policy: Policy, batch: Transitions) -> LossGradients:
    actions = distribution(policy.head, policy.outputs(batch.observations), batch.actions)
    return algorithm.losses(actions, policy.values(batch.observations), batch)[1]


@torch.no_grad()
def probability(policy: Policy, batch: Transitions) -> float:
    return float(policy.outputs(batch.observations).softmax(-1)[:, 1].mean())


class Autograd:
    """Updates by the formulas of the papers, which autograd differentiates."""

    def __init__(self, algorithm: spec.Reinforce | spec.Ppo) -> None:
        self._algorithm = algorithm

    def loss(self, policy: Policy, batch: Transitions) -> Tensor:
        outputs, values = policy.network(policy.normalized(batch.observations))
        log_probs, entropies = policy.head.log_probs(outputs, batch.actions), policy.head.entropy(outputs)
        weights = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)
        errors = (values - batch.returns) ** 2
        gains = log_probs * weights
        if isinstance(self._algorithm, spec.Ppo):
            ratio, clip = (log_probs - batch.log_probs).exp(), self._algorithm.clip
            gains = torch.min(ratio * weights, ratio.clip(1 - clip, 1 + clip) * weights)
            if (bound := self._algorithm.value_clip) is not None:
                clipped = batch.values + (values - batch.values).clip(-bound, bound)
                errors = torch.max(errors, (clipped - batch.returns) ** 2)
        return (-gains + self._algorithm.value_coefficient * errors / 2 - 0.1 * entropies).mean()

    def update(self, policy: Policy, optimizer: torch.optim.Optimizer, batch: Transitions) -> float:
        optimizer.zero_grad()
        loss = self.loss(policy, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        optimizer.step()
        return loss.item()


ALGORITHMS = [
    spec.Reinforce(name="reinforce", entropy_coefficient=0.1),
    spec.Ppo(name="ppo", epochs=1, minibatch_size=1000, entropy_coefficient=0.1),
    spec.Ppo(name="ppo", epochs=1, minibatch_size=1000, entropy_coefficient=0.1, value_clip=0.1),
]
NETWORKS: list[dict[str, Any]] = [
    {"name": "mlp", "hidden": [8, 6], "activation": "tanh", "dropout": 0.0, "initialization": "orthogonal"},
    {"name": "mlp", "hidden": [8], "activation": "relu", "dropout": 0.0, "initialization": "orthogonal"},
    {"name": "mlp", "hidden": [], "activation": "tanh", "dropout": 0.0, "initialization": "orthogonal"},
    SHARED,
    {"name": "custom", "builder": "tests.workloads.reinforce.playgrounds:OneMatrix", "arguments": {}},
]


@pytest.mark.slow
@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("chosen", ALGORITHMS, ids=["reinforce", "ppo", "ppo, clipped values"])
@pytest.mark.parametrize("action", [DESCRIPTION["action"], BOX], ids=["categorical", "gaussian"])
@pytest.mark.parametrize("network", NETWORKS, ids=["tanh", "relu", "linear", "custom", "one parameter"])
def test_gradients_in_closed_form_are_those_of_autograd(
    chosen: spec.Reinforce | spec.Ppo, action: dict[str, Any], network: dict[str, Any]
) -> None:
    """The same batch many times: ratios and values leave the clip ranges. There is a restart in between."""
    torch.manual_seed(1)
    description = {**DESCRIPTION, "action": action, "policy": network, "normalize": True}
    policies = [Policy(description) for _ in range(2)]
    policies[1].load_state_dict(policies[0].state_dict())
    ours, reference = policies
    optimizers = [torch.optim.Adam(policy.parameters(), lr=0.05) for policy in policies]
    batch = transitions(ours)
    batch = Transitions(batch.observations, batch.actions, batch.log_probs, batch.values, torch.randn(50).double())
    algorithm = Reinforce(chosen) if isinstance(chosen, spec.Reinforce) else Ppo(chosen)
    gradients, autograd = backpropagation(ours, 0.5), Autograd(chosen)
    for number in range(20):
        if number == 10:
            weights, state = ours.state_dict(), optimizers[0].state_dict()
            ours = Policy(description)
            ours.load_state_dict(weights)
            optimizers[0] = torch.optim.Adam(ours.parameters(), lr=0.05)
            optimizers[0].load_state_dict(state)
            gradients = backpropagation(ours, 0.5)
        losses = update_policy(algorithm, ours, gradients, optimizers[0], batch)
        assert losses["loss"] == pytest.approx(autograd.update(reference, optimizers[1], batch), abs=1e-10)
    torch.testing.assert_close(ours.state_dict(), reference.state_dict(), rtol=0, atol=1e-10)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_loops_compute_what_they_can(implementation: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Policy(DESCRIPTION | {"precision": precision})
    names: set[str] = set()

    def record(name: str, *tensors: Tensor) -> Any:
        names.add(name)
        return library.loop(name, *tensors)

    for module in (update_loops, policy_loops):
        monkeypatch.setattr(module, "loop", record)
    gradients = backpropagation(policy, 0.5)
    optimizer = torch.optim.Adam(gradients.parameters)
    for _ in range(2):  # The first step of the optimizer is torch's.
        update_policy(Ppo(spec.Ppo(name="ppo")), policy, gradients, optimizer, transitions(policy))
    loops = {"ppo", "tanh_backward", "clip_norm", "step_adam"} | ({"tanh"} if precision == "float32" else set())
    assert names == (loops if implementation == "native" else set())


@pytest.mark.parametrize(
    "algorithm", [Ppo(spec.Ppo(name="ppo", minibatch_size=16)), Reinforce(spec.Reinforce(name="reinforce"))]
)
def test_good_actions_become_likelier(policy: Policy, algorithm: Ppo | Reinforce) -> None:
    batch = transitions(policy)
    before = probability(policy, batch)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.05)
    losses = update_policy(algorithm, policy, backpropagation(policy, None), optimizer, batch)
    assert probability(policy, batch) > before
    assert set(losses) == {"loss", "policy_loss", "value_loss", "entropy", "kl"}


def test_an_update_ends_when_the_policy_has_moved_far(policy: Policy) -> None:
    batch = transitions(policy)
    counted: list[Tensor] = []

    class Counting(Ppo):
        def minibatches(self, count: int) -> Iterator[Tensor]:
            for indices in super().minibatches(count):
                counted.append(indices)
                yield indices

    far = Counting(spec.Ppo(name="ppo", minibatch_size=25, epochs=20, target_kl=0.01))
    optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
    update_policy(far, policy, backpropagation(policy, None), optimizer, batch)
    assert 1 < len(counted) < 40


def test_the_gradient_ends_where_the_ratio_is_clipped(policy: Policy) -> None:
    batch = transitions(policy)
    likelier = Transitions(batch.observations, batch.actions, batch.log_probs - 1, batch.values, batch.advantages)
    ppo = Ppo(spec.Ppo(name="ppo", normalize_advantages=False))
    good, bad = (likelier.select((batch.advantages == sign).nonzero().squeeze(1)) for sign in (1, -1))
    assert not gradients_of(ppo, policy, good).log_probs.any()
    assert gradients_of(ppo, policy, bad).log_probs.all()


def test_values_move_no_further_than_they_may(policy: Policy) -> None:
    batch = transitions(policy)
    shifted = Transitions(batch.observations, batch.actions, batch.log_probs, batch.values - 3, batch.advantages + 6)
    expected = 0.5 * (0.5 - batch.advantages - 6).square().mean()
    loss, gradient = value_loss(batch.values, shifted, clip=0.5)
    torch.testing.assert_close(loss, expected)
    assert not gradient.any()


def test_a_minibatch_of_one_is_left_out() -> None:
    ppo = Ppo(spec.Ppo(name="ppo", minibatch_size=4, epochs=1))
    assert [len(part) for part in ppo.minibatches(9)] == [4, 4]
