"""Values and gradients of policies. `test_algorithms` compares whole updates with those of autograd."""

from collections.abc import Callable

import pytest
import torch
from tests.kit.policy_gradients.modules import INPUTS, Actor, OneMatrix, Shared, Spare, TwoMlps
from torch import nn


def actor(network: Callable[[], nn.Module], *, gaussian: bool = False) -> Actor:
    torch.manual_seed(1)
    return Actor(network(), gaussian=gaussian)


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("network", [lambda: TwoMlps(8), Shared], ids=["mlp", "any network"])
def test_outputs_and_values_are_those_of_the_module(network: Callable[[], nn.Module]) -> None:
    module, observations = actor(network), torch.randn(4, INPUTS)
    policy = module.differentiable()
    for _ in range(2):
        expected, found = module(observations), policy.forward(observations)
        torch.testing.assert_close(found, (expected[0].detach(), expected[1].detach()))
        values = policy.values(observations)
        torch.testing.assert_close(values, expected[1].detach())
        assert not values.requires_grad
        with torch.no_grad():
            for parameter in policy.parameters:  # What follows has the new weights.
                parameter.add_(torch.randn_like(parameter))


def passes(module: Actor, max_norm: float | None = None) -> tuple[Callable[[int], None], Callable[[], float]]:
    """A pass over some rows, with clipped gradients, and the norm of the gradients."""
    policy = module.differentiable()

    def run(rows: int) -> None:
        torch.manual_seed(5)
        outputs, values = policy.forward(torch.randn(rows, INPUTS, dtype=torch.float64))
        policy.backward(torch.ones_like(outputs), torch.ones_like(values))
        if max_norm is not None:
            policy.clip_gradients(max_norm)

    def norm() -> float:
        found = [parameter.grad for parameter in policy.parameters if parameter.grad is not None]
        return float(torch.cat([gradient.flatten() for gradient in found]).norm())

    return run, norm


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("network", [lambda: TwoMlps(8), Shared], ids=["mlp", "any network"])
def test_gradients_are_clipped_to_the_norm_and_smaller_ones_stay(network: Callable[[], nn.Module]) -> None:
    norms: list[float] = []
    for max_norm in (None, 1e9, 0.5):
        run, norm = passes(actor(network), max_norm)
        run(10)
        norms.append(norm())
    whole, kept, clipped = norms
    assert whole > 1
    assert kept == pytest.approx(whole)
    assert clipped == pytest.approx(0.5, rel=1e-5)


def test_parameters_that_a_minibatch_does_not_use_have_no_gradient_in_it() -> None:
    """Optimizers skip them then. With a gradient of zeros, they would move by their momentum."""
    module = actor(Spare)
    run, _ = passes(module)
    run(3)
    assert all(parameter.grad is not None for parameter in module.parameters())
    run(2)
    assert [name for name, one in module.named_parameters() if one.grad is None] == ["network.spare"]


def test_the_gradient_of_a_single_parameter_stays_where_it_is_and_does_not_add_up() -> None:
    module = actor(OneMatrix)
    run, norm = passes(module)
    (parameter,) = module.parameters()
    run(3)
    assert parameter.grad is not None
    address, before = parameter.grad.data_ptr(), norm()
    run(3)
    assert (parameter.grad.data_ptr(), norm()) == (address, before)
