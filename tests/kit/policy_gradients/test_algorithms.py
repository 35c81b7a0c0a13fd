# pyright: standard
"""Updates in closed form are those of the papers' formulas with autograd; tests/numerics has whole trainings."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.kit.policy_gradients.modules import Actor, OneMatrix, Shared, TwoMlps, transitions
from torch import Tensor, nn

from rolecall.kit.native import library, policy_loops, update_loops
from rolecall.kit.policy_gradients.algorithms import Algorithm, Ppo, Reinforce, update_policy, value_loss
from rolecall.kit.policy_gradients.transitions import Transitions

COMMON = {"gamma": 0.99, "value_coefficient": 0.5, "entropy_coefficient": 0.1, "normalize_advantages": True}
PPO = Ppo(**COMMON, gae_lambda=0.95, clip=0.2, epochs=10, minibatch_size=256)
WHOLE = replace(PPO, epochs=1, minibatch_size=1000)


@pytest.fixture
def actor() -> Actor:
    torch.manual_seed(1)
    return Actor(TwoMlps(8))


@torch.no_grad()
def probability(actor: Actor, batch: Transitions) -> float:
    return float(actor(batch.observations)[0].softmax(-1)[:, 1].mean())


class Autograd:
    """Updates by the formulas of the papers, which autograd differentiates."""

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm

    def loss(self, actor: Actor, batch: Transitions) -> Tensor:
        outputs, values = actor(batch.observations)
        actions = actor.actions_of(outputs)
        log_probs = actions.log_prob(batch.actions)
        weights = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)
        errors = (values - batch.returns) ** 2
        gains = log_probs * weights
        if isinstance(self._algorithm, Ppo):
            ratio, clip = (log_probs - batch.log_probs).exp(), self._algorithm.clip
            gains = torch.min(ratio * weights, ratio.clip(1 - clip, 1 + clip) * weights)
            if (bound := self._algorithm.value_clip) is not None:
                clipped = batch.values + (values - batch.values).clip(-bound, bound)
                errors = torch.max(errors, (clipped - batch.returns) ** 2)
        return (-gains + self._algorithm.value_coefficient * errors / 2 - 0.1 * actions.entropy()).mean()

    def update(self, actor: Actor, optimizer: torch.optim.Optimizer, batch: Transitions) -> float:
        optimizer.zero_grad()
        loss = self.loss(actor, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(actor.parameters(), 0.5)
        optimizer.step()
        return loss.item()


ALGORITHMS = [Reinforce(**COMMON), WHOLE, replace(WHOLE, value_clip=0.1)]
NETWORKS: list[Callable[[], nn.Module]] = [
    lambda: TwoMlps(8, 6),
    lambda: TwoMlps(8, activation=nn.ReLU),
    TwoMlps,
    Shared,
    OneMatrix,
]


@pytest.mark.slow
@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=["reinforce", "ppo", "ppo, clipped values"])
@pytest.mark.parametrize("gaussian", [False, True], ids=["categorical", "gaussian"])
@pytest.mark.parametrize("network", NETWORKS, ids=["tanh", "relu", "linear", "shared", "one parameter"])
def test_gradients_in_closed_form_are_those_of_autograd(
    algorithm: Algorithm, gaussian: bool, network: Callable[[], nn.Module]
) -> None:
    """The same batch many times: ratios and values leave the clip ranges. There is a restart in between."""
    torch.manual_seed(1)
    ours, reference = (Actor(network(), gaussian=gaussian) for _ in range(2))
    reference.load_state_dict(ours.state_dict())
    optimizers = [torch.optim.Adam(actor.parameters(), lr=0.05) for actor in (ours, reference)]
    batch = replace(transitions(ours), advantages=torch.randn(50).double())
    policy, autograd = ours.differentiable(), Autograd(algorithm)
    for number in range(20):
        if number == 10:
            weights, state = ours.state_dict(), optimizers[0].state_dict()
            ours = Actor(network(), gaussian=gaussian)
            ours.load_state_dict(weights)
            optimizers[0] = torch.optim.Adam(ours.parameters(), lr=0.05)
            optimizers[0].load_state_dict(state)
            policy = ours.differentiable()
        losses = update_policy(algorithm, policy, optimizers[0], batch, max_grad_norm=0.5)
        assert losses["loss"] == pytest.approx(autograd.update(reference, optimizers[1], batch), abs=1e-10)
    torch.testing.assert_close(ours.state_dict(), reference.state_dict(), rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_loops_compute_what_they_can(implementation: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    actor = Actor(TwoMlps(8), dtype=dtype)
    names: set[str] = set()

    def record(name: str, *tensors: Tensor) -> Any:
        names.add(name)
        return library.loop(name, *tensors)

    for module in (update_loops, policy_loops):
        monkeypatch.setattr(module, "loop", record)
    policy = actor.differentiable()
    optimizer = torch.optim.Adam(policy.parameters)
    for _ in range(2):  # The first step of the optimizer is torch's.
        update_policy(PPO, policy, optimizer, transitions(actor), max_grad_norm=0.5)
    loops = {"ppo", "tanh_backward", "clip_norm", "step_adam"} | ({"tanh"} if dtype == torch.float32 else set())
    assert names == (loops if implementation == "native" else set())


@pytest.mark.parametrize("algorithm", [replace(PPO, minibatch_size=16), Reinforce(**COMMON)])
def test_good_actions_become_likelier(actor: Actor, algorithm: Algorithm) -> None:
    batch = transitions(actor)
    before = probability(actor, batch)
    optimizer = torch.optim.SGD(actor.parameters(), lr=0.05)
    losses = update_policy(algorithm, actor.differentiable(), optimizer, batch, max_grad_norm=None)
    assert probability(actor, batch) > before
    assert set(losses) == {"loss", "policy_loss", "value_loss", "entropy", "kl"}


def test_an_update_ends_when_the_policy_has_moved_far(actor: Actor) -> None:
    batch = transitions(actor)
    counted: list[Tensor] = []

    class Counting(Ppo):
        def minibatches(self, count: int) -> Iterator[Tensor]:
            for indices in super().minibatches(count):
                counted.append(indices)
                yield indices

    far = Counting(**COMMON, clip=0.2, minibatch_size=25, epochs=20, target_kl=0.01)
    optimizer = torch.optim.SGD(actor.parameters(), lr=1.0)
    update_policy(far, actor.differentiable(), optimizer, batch, max_grad_norm=None)
    assert 1 < len(counted) < 40


def test_the_gradient_ends_where_the_ratio_is_clipped(actor: Actor) -> None:
    batch = transitions(actor)
    ppo, growths = replace(PPO, normalize_advantages=False), torch.ones(1, dtype=torch.float64)
    good, bad = (batch.select((batch.advantages == sign).nonzero().squeeze(1)) for sign in (1, -1))
    assert not ppo.policy_loss(good.log_probs, growths.expand(len(good)), good)[1].any()
    assert ppo.policy_loss(bad.log_probs, growths.expand(len(bad)), bad)[1].all()


def test_values_move_no_further_than_they_may(actor: Actor) -> None:
    batch = transitions(actor)
    shifted = replace(batch, values=batch.values - 3, advantages=batch.advantages + 6)
    expected = 0.5 * (0.5 - batch.advantages - 6).square().mean()
    loss, gradient = value_loss(batch.values, shifted, clip=0.5)
    torch.testing.assert_close(loss, expected)
    assert not gradient.any()


def test_a_minibatch_of_one_is_left_out() -> None:
    ppo = replace(PPO, minibatch_size=4, epochs=1)
    assert [len(part) for part in ppo.minibatches(9)] == [4, 4]
