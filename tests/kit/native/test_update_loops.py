# pyright: standard
"""The loops of updates compute what torch's operations do, and refuse what they would read outside of memory."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Adam

from rolecall.kit.native.update_loops import adam_step, clip_norm, relu_backward, tanh, tanh_backward

TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


@TYPES
@pytest.mark.parametrize(("count", "max_norm"), [(1, 0.1), (16, 0.5), (1003, 0.5), (1003, 100.0), (1003, 0.0)])
def test_norms_are_clipped_as_by_torch(count: int, max_norm: float, dtype: torch.dtype) -> None:
    parameter = nn.Parameter(torch.zeros(count, dtype=dtype))
    parameter.grad = torch.randn(count, dtype=dtype)
    gradient = parameter.grad.clone()
    nn.utils.clip_grad_norm_([parameter], max_norm)
    clip_norm(gradient, max_norm)
    torch.testing.assert_close(gradient, parameter.grad)


def test_a_norm_that_is_no_number_is_not_hidden() -> None:
    gradient = torch.tensor([1.0, torch.nan, 2.0])
    clip_norm(gradient, 0.5)
    assert gradient.isnan().all()


def test_hyperbolic_tangents_are_precise_at_all_sizes() -> None:
    """Inputs are all sizes of either sign; the largest error is 6.4 units in the last place."""
    sizes = torch.cat([torch.linspace(1e-3, 12, 1_000_001), torch.logspace(-37, 38, 100_000)])
    inputs = torch.cat([sizes, -sizes, torch.zeros(1)])
    results, expected = inputs.clone(), inputs.double().tanh()
    tanh(results)
    unit = expected.abs().float().nextafter(torch.tensor(2.0)).double() - expected.abs().float().double()
    assert ((results.double() - expected).abs() / unit).max() < 8
    assert results.abs().max() == 1


def test_the_hyperbolic_tangent_of_extremes() -> None:
    numbers = torch.tensor([torch.inf, -torch.inf, torch.nan])
    tanh(numbers)
    assert numbers[:2].tolist() == [1, -1]
    assert numbers[2].isnan()


@TYPES
@pytest.mark.parametrize("loop", [tanh_backward, relu_backward])
def test_gradients_of_activations_are_torchs(loop: Any, dtype: torch.dtype) -> None:
    inputs = torch.randn(37, 19, dtype=dtype, requires_grad=True)
    results = inputs.tanh() if loop is tanh_backward else inputs.relu()
    gradient, sums = torch.randn(37, 19, dtype=dtype), torch.randn(19, dtype=dtype)
    results.backward(gradient)
    assert inputs.grad is not None
    before = sums.clone()
    found = gradient.clone()
    loop(found, results.detach(), sums, accumulate=True)
    torch.testing.assert_close(found, inputs.grad)
    torch.testing.assert_close(sums, before + inputs.grad.sum(0))
    loop(gradient, results.detach(), sums, accumulate=False)
    torch.testing.assert_close(sums, inputs.grad.sum(0))


@pytest.mark.parametrize(("results", "sums"), [((3, 3), (2,)), ((3, 2), (3,)), ((2, 2), (2,))])
def test_other_shapes_are_refused(results: tuple[int, ...], sums: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="have the shape"):
        tanh_backward(torch.ones(3, 2), torch.ones(results), torch.zeros(sums), accumulate=False)


def optimizer(dtype: torch.dtype = torch.float32, **arguments: Any) -> Adam:
    """One that has done a step."""
    weight = nn.Parameter(torch.ones(4, dtype=dtype))
    weight.grad = torch.ones_like(weight)
    made = Adam([weight], **arguments)
    made.step()
    return made


def test_a_step_of_adam_is_torchs() -> None:
    """tests/kit/test_flat.py compares many steps."""
    torch_ones, ours = optimizer(fused=True, lr=0.1), optimizer(fused=True, lr=0.1)
    advance = adam_step(ours)
    assert advance is not None
    advance()
    torch_ones.step()
    torch.testing.assert_close(ours.state_dict(), torch_ones.state_dict())
    torch.testing.assert_close(ours.param_groups[0]["params"], torch_ones.param_groups[0]["params"])


def test_autograd_sees_that_a_step_changes_the_weight() -> None:
    ours = optimizer()
    (weight,) = ours.param_groups[0]["params"]
    loss = weight.square().sum()
    advance = adam_step(ours)
    assert advance is not None
    advance()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_optimizers_without_a_loop() -> None:
    assert adam_step(Adam([nn.Parameter(torch.ones(4))])) is None, "no state"
    for made in (optimizer(amsgrad=True), optimizer(maximize=True), optimizer(torch.bfloat16)):
        assert adam_step(made) is None
    ours = optimizer()
    ours.add_param_group({"params": [nn.Parameter(torch.ones(4))]})
    assert adam_step(ours) is None, "two groups"
