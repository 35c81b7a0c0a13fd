"""Small policies as torch modules, and transitions of their actions.

Their distributions are torch's own, so that they are the reference for those of the kit.
"""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, Normal

from rolecall.kit.policy_gradients.policies import AutogradPolicy, DifferentiablePolicy, MlpPolicy
from rolecall.kit.policy_gradients.transitions import Transitions

INPUTS, OUTPUTS = 3, 2


class TwoMlps(nn.Module):
    """MLPs for the outputs and the values, with `hidden` layers."""

    def __init__(self, *hidden: int, activation: type[nn.Module] = nn.Tanh) -> None:
        super().__init__()
        self.actor, self.critic = (self._layers([INPUTS, *hidden, last], activation) for last in (OUTPUTS, 1))

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(observations), self.critic(observations).squeeze(-1)

    @staticmethod
    def _layers(widths: list[int], activation: type[nn.Module]) -> nn.Sequential:
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs), activation()]
        return nn.Sequential(*layers[:-1])


class Shared(nn.Module):
    """A network whose first layer is shared between outputs and values."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(INPUTS, 5), nn.Tanh())
        self.actor, self.critic = nn.Linear(5, OUTPUTS), nn.Linear(5, 1)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(observations)
        return self.actor(features), self.critic(features).squeeze(-1)


class OneMatrix(nn.Module):
    """A network with a single parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(INPUTS, OUTPUTS + 1, bias=False)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        results = self.layer(observations)
        return results[:, :-1], results[:, -1]


class Spare(OneMatrix):
    """A network with a parameter that only batches of more than 2 rows use."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Parameter(torch.zeros(()))

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        outputs, values = super().forward(observations)
        return (outputs + self.spare, values) if len(observations) > 2 else (outputs, values)


class Actor(nn.Module):
    """A policy that chooses one of two actions, or draws two from Gaussians."""

    def __init__(self, network: nn.Module, *, gaussian: bool = False, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.log_deviation = nn.Parameter(torch.zeros(OUTPUTS, dtype=dtype)) if gaussian else None
        self.network = network.to(dtype)
        self._dtype = dtype

    def encode(self, observations: Tensor) -> Tensor:
        return (observations.to(self._dtype) - 1) / 2

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        return self.network(self.encode(observations))

    def actions_of(self, outputs: Tensor) -> Distribution:
        return distribution(outputs, self.log_deviation)

    def differentiable(self) -> DifferentiablePolicy:
        given: dict[str, Any] = {"encode": self.encode, "log_deviation": self.log_deviation}
        if isinstance(self.network, TwoMlps):
            return MlpPolicy(self, self.network.actor, self.network.critic, **given)
        return AutogradPolicy(self, self.network, **given)


def distribution(outputs: Tensor, log_deviation: Tensor | None) -> Distribution:
    """Torch's own distribution of the actions."""
    if log_deviation is None:
        return Categorical(logits=outputs)
    return Independent(Normal(outputs, log_deviation.exp().expand_as(outputs)), 1)


@torch.no_grad()
def transitions(actor: Actor, count: int = 50) -> Transitions:
    """Action 1 is good, action 0 is bad; with Gaussian actions, advantages are random."""
    observations = torch.randn(count, INPUTS, dtype=torch.float64)
    outputs, values = actor(observations)
    actions = actor.actions_of(outputs).sample()
    advantages = torch.randn_like(values) if actor.log_deviation is not None else (2 * actions - 1).to(values)
    return Transitions(observations, actions, actor.actions_of(outputs).log_prob(actions), values, advantages)
