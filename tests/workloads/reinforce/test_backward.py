"""Forward and backward passes in closed form. `test_algorithms` compares whole updates with those of autograd."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.workloads.reinforce.test_algorithms import BOX, DESCRIPTION, SHARED, transitions
from torch import Tensor

from rolecall.workloads.reinforce import backward
from rolecall.workloads.reinforce import params as spec
from rolecall.workloads.reinforce.algorithms import Reinforce, update_policy
from rolecall.workloads.reinforce.backward import backpropagation, distribution, outputs_of, values_of
from rolecall.workloads.reinforce.model import Policy

PLAYGROUNDS = "tests.workloads.reinforce.playgrounds"
DROPOUT = DESCRIPTION["policy"] | {"dropout": 0.5}


@pytest.fixture
def policy() -> Policy:
    torch.manual_seed(1)
    return Policy(DESCRIPTION)


def policy_of(network: dict[str, Any], **given: Any) -> Policy:
    torch.manual_seed(1)
    return Policy(DESCRIPTION | {"policy": network} | given)


def custom(name: str) -> dict[str, Any]:
    return {"name": "custom", "builder": f"{PLAYGROUNDS}:{name}", "arguments": {}}


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@torch.no_grad()
def test_the_fast_passes_give_what_the_policy_gives(activation: str, precision: str) -> None:
    network = DESCRIPTION["policy"] | {"activation": activation, "initialization": "uniform"}
    policy = Policy(DESCRIPTION | {"policy": network, "precision": precision, "normalize": True})
    observations = 5 * torch.randn(40, 3) + 2
    assert policy.normalizer is not None
    policy.normalizer.update(observations)
    torch.testing.assert_close(outputs_of(policy)(observations), policy.outputs(observations))
    torch.testing.assert_close(values_of(policy)(observations), policy.values(observations))


@pytest.mark.usefixtures("implementation")
def test_large_batches_pass_in_parts(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, copy = transitions(policy), Policy(DESCRIPTION)
    copy.load_state_dict(policy.state_dict())
    algorithm = Reinforce(spec.Reinforce(name="reinforce"))
    losses: list[dict[str, float]] = []
    for rows, chosen in ((50, policy), (16, copy)):
        monkeypatch.setattr(backward, "_ROWS", rows)
        optimizer = torch.optim.SGD(chosen.parameters(), lr=0.5)
        losses.append(update_policy(algorithm, chosen, backpropagation(chosen, None), optimizer, batch))
    assert losses[1] == pytest.approx(losses[0], abs=1e-12)
    torch.testing.assert_close(copy.state_dict(), policy.state_dict(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("entropy", [0.0, -0.3])
@pytest.mark.parametrize("action", [DESCRIPTION["action"], BOX], ids=["categorical", "gaussian"])
def test_a_distribution_differentiates_itself_as_autograd_does(action: dict[str, Any], entropy: float) -> None:
    head = policy_of(DESCRIPTION["policy"], action=action).head
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    for _ in range(2):  # The second gradient replaces the first one.
        outputs = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
        actions, weights = head.sample(outputs).detach(), torch.randn(6, dtype=torch.float64)
        found = distribution(head, outputs.detach(), actions)
        log_probs, entropies = head.log_probs(outputs, actions), head.entropy(outputs)
        torch.testing.assert_close(found.log_probs, log_probs.detach())
        torch.testing.assert_close(found.entropies, entropies.detach())
        expected = torch.autograd.grad((log_probs * weights + entropy * entropies).sum(), [outputs, *head.parameters()])
        torch.testing.assert_close(found.backward(weights, entropy), expected[0])
        own = [parameter.grad for parameter in head.parameters()]
        torch.testing.assert_close(own, list(expected[1:]))


@torch.no_grad()
def test_the_fast_passes_follow_the_parameters(policy: Policy) -> None:
    observations = torch.randn(4, 3, dtype=torch.float64)
    outputs, values = outputs_of(policy), values_of(policy)
    for parameter in policy.parameters():
        parameter.add_(torch.randn_like(parameter))
    torch.testing.assert_close(outputs(observations), policy.outputs(observations))
    torch.testing.assert_close(values(observations), policy.values(observations))


@torch.no_grad()
def test_dropout_is_part_of_the_fast_outputs_and_the_critic_has_none() -> None:
    policy, observations = policy_of(DROPOUT).train(), torch.randn(4, 3, dtype=torch.float64)
    outputs = outputs_of(policy)
    seeded: list[Tensor] = []
    for compute in (outputs, policy.outputs, outputs):
        torch.manual_seed(2 if len(seeded) < 2 else 3)
        seeded.append(compute(observations))
    torch.testing.assert_close(seeded[0], seeded[1])
    assert not torch.equal(seeded[0], seeded[2])
    torch.testing.assert_close(values_of(policy)(observations), policy.values(observations))


def test_dropout_is_part_of_an_update() -> None:
    policy, observations = policy_of(DROPOUT).train(), torch.ones(100, 3, dtype=torch.float64)
    outputs, _ = backpropagation(policy, None).forward(observations)
    assert len({tuple(row) for row in outputs.tolist()}) > 1


def gradients(policy: Policy, max_norm: float | None) -> tuple[Callable[[int], None], Callable[[], float]]:
    """A pass over some transitions with clipped gradients, and the norm of the gradients."""
    passes = backpropagation(policy, max_norm)

    def run(rows: int) -> None:
        torch.manual_seed(5)
        outputs, values = passes.forward(torch.randn(rows, 3, dtype=torch.float64))
        passes.backward(torch.ones_like(outputs), torch.ones_like(values))
        passes.clip()

    def norm() -> float:
        found = [parameter.grad for parameter in passes.parameters if parameter.grad is not None]
        return float(torch.cat([gradient.flatten() for gradient in found]).norm())

    return run, norm


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("network", [DESCRIPTION["policy"], SHARED], ids=["mlp", "custom"])
def test_gradients_are_clipped_to_the_norm_and_smaller_ones_stay(network: dict[str, Any]) -> None:
    norms: list[float] = []
    for max_norm in (None, 1e9, 0.5):
        run, norm = gradients(policy_of(network), max_norm)
        run(10)
        norms.append(norm())
    whole, kept, clipped = norms
    assert whole > 1
    assert kept == pytest.approx(whole)
    assert clipped == pytest.approx(0.5, rel=1e-5)


def test_parameters_that_a_minibatch_does_not_use_have_no_gradient_in_it() -> None:
    """Optimizers skip them then. With a gradient of zeros, they would move by their momentum."""
    policy = policy_of(custom("Spare"))
    run, _ = gradients(policy, None)
    run(3)
    assert all(parameter.grad is not None for parameter in policy.parameters())
    run(2)
    assert [name for name, one in policy.named_parameters() if one.grad is None] == ["network.spare"]


def test_the_gradient_of_a_single_parameter_stays_where_it_is_and_does_not_add_up() -> None:
    policy = policy_of(custom("OneMatrix"))
    run, norm = gradients(policy, None)
    (parameter,) = policy.parameters()
    run(3)
    assert parameter.grad is not None
    address, before = parameter.grad.data_ptr(), norm()
    run(3)
    assert (parameter.grad.data_ptr(), norm()) == (address, before)
