# pyright: standard
"""Passes through layers give what the modules give, and gradients what autograd gives."""

import copy

import pytest
import torch
from tests.kit.policy_gradients.modules import INPUTS, TwoMlps
from torch import Tensor, nn

from rolecall.kit.policy_gradients import mlp
from rolecall.kit.policy_gradients.mlp import DifferentiableLayers, Layers, in_parts


def layers(activation: type[nn.Module], dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(1)
    return TwoMlps(8, 6, activation=activation).to(dtype).actor


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
@torch.no_grad()
def test_a_forward_pass_gives_what_the_modules_give(activation: type[nn.Module], dtype: torch.dtype) -> None:
    modules, inputs = layers(activation, dtype), 5 * torch.randn(40, INPUTS, dtype=dtype)
    torch.testing.assert_close(Layers(modules).outputs(inputs), modules(inputs))


@torch.no_grad()
def test_a_forward_pass_follows_the_parameters() -> None:
    modules, inputs = layers(nn.Tanh, torch.float64), torch.randn(4, INPUTS, dtype=torch.float64)
    fast = Layers(modules)
    for parameter in modules.parameters():
        parameter.add_(torch.randn_like(parameter))
    torch.testing.assert_close(fast.outputs(inputs), modules(inputs))


def _with_gradients(modules: nn.Sequential) -> nn.Sequential:
    copied = copy.deepcopy(modules)
    for parameter in copied.parameters():
        parameter.grad = torch.ones_like(parameter)  # A backward pass replaces it.
    return copied


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("rows", [50, 16])
@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
def test_a_backward_pass_in_parts_gives_what_autograd_gives(
    activation: type[nn.Module], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlp, "ROWS", rows)
    modules, inputs = layers(activation, torch.float64), torch.randn(50, INPUTS, dtype=torch.float64)
    ours, gradient = _with_gradients(modules), torch.randn(50, 2, dtype=torch.float64)
    outputs: Tensor = modules(inputs)
    outputs.backward(gradient)
    with torch.no_grad():
        fast = DifferentiableLayers(ours)
        torch.testing.assert_close(fast.forward(in_parts(inputs)), outputs.detach(), rtol=0, atol=1e-12)
        fast.backward(gradient)
    for own, expected in zip(ours.parameters(), modules.parameters(), strict=True):
        torch.testing.assert_close(own.grad, expected.grad, rtol=0, atol=1e-12)
