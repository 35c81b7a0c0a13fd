# pyright: standard
"""Values and gradients of policies. `test_algorithms` compares whole updates with those of autograd."""

import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from tests.kit.policy_gradients.modules import INPUTS, Actor, OneMatrix, Shared, Spare, TwoMlps
from torch import nn

from rolecall.kit.policy_gradients.mlp import ROWS


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


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets the number of torch's threads, until the end of the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def both_passes(rows: int) -> tuple[list[torch.Tensor], bool]:
    """The results of a policy's passes over random rows, and whether the critic's ran in a thread of its own."""
    before = set(threading.enumerate())
    module, observations = actor(lambda: TwoMlps(8)), torch.randn(rows, INPUTS, dtype=torch.float64)
    policy = module.differentiable()
    with policy.updating():
        assert torch.get_num_threads() == 1
        outputs, values = policy.forward(observations)
        policy.backward(torch.ones_like(outputs), torch.ones_like(values))
    (parameter,) = policy.parameters
    assert parameter.grad is not None
    # The thread lives as long as the policy.
    is_parallel = any(thread.name.startswith("critic") for thread in set(threading.enumerate()) - before)
    return [outputs, values, parameter.grad], is_parallel


@pytest.mark.usefixtures("implementation")
def test_a_large_batch_passes_through_both_networks_at_once_with_the_results_of_one_thread(
    threads: Callable[[int], None],
) -> None:
    threads(1)
    expected, is_parallel = both_passes(3 * ROWS)
    assert not is_parallel
    threads(2)
    found, is_parallel = both_passes(3 * ROWS)
    assert is_parallel
    assert torch.get_num_threads() == 2
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one, other)


def test_a_small_batch_needs_no_second_thread(threads: Callable[[int], None]) -> None:
    threads(2)
    assert not both_passes(ROWS)[1]


def test_an_error_of_the_critic_in_the_second_thread_is_raised(threads: Callable[[int], None]) -> None:
    threads(2)
    policy = actor(lambda: TwoMlps(8)).differentiable()
    with policy.updating():
        outputs, values = policy.forward(torch.randn(2 * ROWS, INPUTS, dtype=torch.float64))
        with pytest.raises(ValueError, match="shorter"):
            policy.backward(outputs, values[:ROWS])
    assert torch.get_num_threads() == 2
