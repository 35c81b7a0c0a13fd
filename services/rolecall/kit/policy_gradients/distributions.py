"""Distributions of actions, with their gradients in closed form. No I/O, no clock."""

import math
from abc import ABC, abstractmethod

from torch import Tensor, nn


class Distribution(ABC):
    """The distribution of actions [b, ...] that network outputs [b, outputs] describe."""

    log_probs: Tensor
    """[b], of the actions, in nats."""
    entropies: Tensor
    """[b], in nats."""

    @abstractmethod
    def backward(self, log_probs: Tensor, entropy: float) -> Tensor:
        """The gradient [b, outputs] of the network outputs, from those of the log-probabilities [b] and of every
        entropy. Also sets the gradients of the distribution's own parameters, if any."""


class CategoricalActions(Distribution):
    """A choice, of which the network outputs are the logits."""

    def __init__(self, logits: Tensor, choices: Tensor) -> None:
        self._choices = choices.long().unsqueeze(-1)
        self._logs = logits.log_softmax(-1)
        self._probs = self._logs.exp()
        self.log_probs = self._logs.gather(-1, self._choices).squeeze(-1)
        self.entropies = -(self._probs * self._logs).sum(-1)

    def backward(self, log_probs: Tensor, entropy: float) -> Tensor:
        weights = log_probs.unsqueeze(-1)
        factors = -weights
        if entropy:
            factors = factors - entropy * (self._logs + self.entropies.unsqueeze(-1))
        return (factors * self._probs).scatter_add_(-1, self._choices, weights)


class GaussianActions(Distribution):
    """A diagonal Gaussian around the network outputs, with a learned deviation that doesn't depend on them."""

    def __init__(self, means: Tensor, actions: Tensor, log_deviation: nn.Parameter) -> None:
        """`log_deviation` is [outputs]."""
        self._log_deviation = log_deviation
        logs = log_deviation.detach()
        self._deviation = logs.exp()
        self._scores = (actions - means) / self._deviation
        self.log_probs = (-0.5 * self._scores.square() - logs - 0.5 * math.log(2 * math.pi)).sum(-1)
        self.entropies = (logs + 0.5 * (1 + math.log(2 * math.pi))).sum().expand(len(means))

    def backward(self, log_probs: Tensor, entropy: float) -> Tensor:
        weights = log_probs.unsqueeze(-1)
        gradient = (weights * (self._scores.square() - 1)).sum(0) + entropy * len(log_probs)
        if self._log_deviation.grad is None:
            self._log_deviation.grad = gradient
        else:
            self._log_deviation.grad.copy_(gradient)
        return weights * self._scores / self._deviation
