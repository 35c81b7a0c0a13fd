"""Log-probabilities, entropies and gradients are those of torch's distributions and autograd."""

import pytest
import torch
from tests.kit.policy_gradients.modules import OUTPUTS, distribution
from torch import nn

from rolecall.kit.policy_gradients.distributions import CategoricalActions, GaussianActions


@pytest.mark.parametrize("entropy", [0.0, -0.3])
@pytest.mark.parametrize("gaussian", [False, True], ids=["categorical", "gaussian"])
def test_a_distribution_differentiates_itself_as_autograd_does(gaussian: bool, entropy: float) -> None:
    deviation = nn.Parameter(torch.randn(OUTPUTS, dtype=torch.float64)) if gaussian else None
    for _ in range(2):  # The second gradient replaces the first one.
        outputs = torch.randn(6, OUTPUTS, dtype=torch.float64, requires_grad=True)
        expected, weights = distribution(outputs, deviation), torch.randn(6, dtype=torch.float64)
        actions, given = expected.sample(), outputs.detach()
        found = CategoricalActions(given, actions) if deviation is None else GaussianActions(given, actions, deviation)
        log_probs, entropies = expected.log_prob(actions), expected.entropy()
        torch.testing.assert_close(found.log_probs, log_probs.detach())
        torch.testing.assert_close(found.entropies, entropies.detach())
        inputs = [outputs] if deviation is None else [outputs, deviation]
        gradients = torch.autograd.grad((log_probs * weights + entropy * entropies).sum(), inputs)
        torch.testing.assert_close(found.backward(weights, entropy), gradients[0])
        if deviation is not None:
            torch.testing.assert_close(deviation.grad, gradients[1])
