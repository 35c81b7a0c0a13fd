# pyright: standard
"""The dense layers of the model."""

import pytest
import torch
from torch import nn

from rolecall.workloads.embedding_ddp.model import MLP, DenseLayers


@pytest.mark.parametrize("numbers", [0, 1, 5])
def test_an_mlp_of_two_inputs_computes_that_of_their_concatenation(numbers: int) -> None:
    torch.manual_seed(0)
    mlp = MLP(8 + numbers, [6, 4], 0.0, 2).double()
    inputs = torch.randn(3, 8 + numbers, dtype=torch.float64)
    pooled, others = inputs[:, :8].clone().requires_grad_(), inputs[:, 8:]
    outputs = mlp(pooled, others)
    outputs.square().sum().backward()
    gradients = [parameter.grad for parameter in mlp.parameters()]
    mlp.zero_grad()
    whole = inputs.clone().requires_grad_()
    expected = nn.Sequential(*mlp.children())(whole)
    expected.square().sum().backward()
    torch.testing.assert_close(outputs, expected, rtol=0, atol=1e-14)
    assert whole.grad is not None
    torch.testing.assert_close(pooled.grad, whole.grad[:, :8], rtol=0, atol=1e-14)
    torch.testing.assert_close(gradients, [parameter.grad for parameter in mlp.parameters()], rtol=0, atol=1e-14)


def test_other_layers_get_the_concatenation() -> None:
    layers = DenseLayers(nn.Sequential(nn.Identity(), nn.Linear(5, 1)))
    pooled, numbers = torch.randn(3, 4), torch.randn(3, 1)
    torch.testing.assert_close(layers(pooled, numbers), layers.layers(torch.cat([pooled, numbers], 1))[:, 0])


def test_weights_of_an_mlp_have_the_names_of_a_sequence() -> None:
    """Checkpoints and exported models contain them."""
    assert list(MLP(3, [2], 0.0).state_dict()) == ["0.weight", "0.bias", "3.weight", "3.bias"]
