"""The policy, for training and in exported models, which contain this file unchanged.

    from model import load
    policy = load(".")
    observation, _ = environment.reset()
    environment.step(policy.act(observation))

Requires torch, numpy and safetensors, and for a custom policy the package that builds it.
"""

import json
import math
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType] - its own types
from torch import Tensor, nn

_MAX_OBSERVATION = 10.0
_ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU}


class ActorCritic(nn.Module):
    """Separate MLPs for actor and critic. With orthogonal initialization, the actor's last layer starts near 0.

    Only the actor has dropout.
    """

    def __init__(
        self, inputs: int, outputs: int, hidden: list[int], *, activation: str, dropout: float, initialization: str
    ) -> None:
        super().__init__()
        gains = (0.01, 1.0) if initialization == "orthogonal" else (None, None)
        self.actor = _layers([inputs, *hidden, outputs], activation, dropout, last_gain=gains[0])
        self.critic = _layers([inputs, *hidden, 1], activation, 0.0, last_gain=gains[1])
        self.has_dropout = dropout > 0

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Actor outputs [n, outputs] and values [n] of observations [n, ...]."""
        flat = observations.flatten(1)
        return self.actor(flat), self.critic(flat).squeeze(-1)

    def outputs(self, observations: Tensor) -> Tensor:
        return self.actor(observations.flatten(1))

    def values(self, observations: Tensor) -> Tensor:
        return self.critic(observations.flatten(1)).squeeze(-1)


def _layers(widths: list[int], activation: str, dropout: float, last_gain: float | None) -> nn.Sequential:
    """Linear layers with torch's initial weights, or with a gain for the last one with orthogonal ones."""
    layers: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(pairwise(widths)):
        last = index == len(widths) - 2
        layer = nn.Linear(inputs, outputs)
        if last_gain is not None:
            nn.init.orthogonal_(layer.weight, last_gain if last else math.sqrt(2))
            nn.init.zeros_(layer.bias)
        layers.append(layer)
        if not last:
            own = _ACTIVATIONS[activation]()
            layers.append(nn.Sequential(own, nn.Dropout(dropout)) if dropout else own)
    return nn.Sequential(*layers)


class Normalizer(nn.Module):
    """Standardizes inputs with running mean and variance."""

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def forward(self, observations: Tensor) -> Tensor:
        """Standardized observations [n, ...], clipped to [-10, 10]."""
        scale = (self.variance + 1e-8).rsqrt()
        scaled = (observations - self.mean.to(observations.dtype)) * scale.to(observations.dtype)
        return scaled.clamp(-_MAX_OBSERVATION, _MAX_OBSERVATION)

    @torch.no_grad()
    def update(self, observations: Tensor) -> None:
        """Update mean and variance with observations [n, ...] (Chan, Golub and LeVeque, 1979)."""
        seen = observations.double()
        count = self.count + len(seen)
        delta = seen.mean(0) - self.mean
        squares = self.variance * self.count + seen.var(0, correction=0) * len(seen)
        squares += delta.square() * self.count * len(seen) / count
        self.mean += delta * len(seen) / count
        self.variance.copy_(squares / count)
        self.count.copy_(count)


class CategoricalHead(nn.Module):
    """A categorical distribution over `count` actions; the network outputs are logits."""

    def __init__(self, count: int, start: int) -> None:
        super().__init__()
        self.size = count
        self.start = start

    def sample(self, outputs: Tensor) -> Tensor:
        """Sampled actions [n], by the Gumbel-max trick: argmax(p / E) with exponential noise E has distribution p."""
        return (outputs.softmax(-1) / torch.empty_like(outputs).exponential_()).argmax(-1)

    def mode(self, outputs: Tensor) -> Tensor:
        """The most likely actions [n]."""
        return outputs.argmax(-1)

    def log_probs(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Log-probabilities [n] of actions [n], in nats."""
        return outputs.log_softmax(-1).gather(-1, actions.long().unsqueeze(-1)).squeeze(-1)

    def to_env_actions(self, actions: Tensor) -> Tensor:
        """Environment actions [n]."""
        return actions + self.start


class GaussianHead(nn.Module):
    """A diagonal Gaussian around the network outputs, with a learned, state-independent deviation.

    If the environment's bounds are finite, -1 and 1 are mapped to them. Actions are clipped to the bounds.
    """

    low: Tensor
    high: Tensor

    def __init__(self, low: list[float], high: list[float], shape: list[int]) -> None:
        super().__init__()
        self.size = math.prod(shape)
        self._shape = shape
        self.log_deviation = nn.Parameter(torch.zeros(self.size))
        self.register_buffer("low", torch.tensor(low), persistent=False)
        self.register_buffer("high", torch.tensor(high), persistent=False)
        self._bounded = bool((self.low.isfinite() & self.high.isfinite()).all())

    def sample(self, outputs: Tensor) -> Tensor:
        """Sampled actions [n, size]."""
        return outputs + self.log_deviation.exp() * torch.randn_like(outputs)

    def mode(self, outputs: Tensor) -> Tensor:
        """The most likely actions [n, size]."""
        return outputs

    def log_probs(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Log-densities [n] of actions [n, size], in nats."""
        distance = (actions - outputs) / self.log_deviation.exp()
        logs = -0.5 * distance.square() - self.log_deviation - 0.5 * math.log(2 * math.pi)
        return logs.sum(-1)

    def to_env_actions(self, actions: Tensor) -> Tensor:
        """Environment actions [n, *shape]."""
        if self._bounded:
            actions = self.low + (actions + 1) * (self.high - self.low) / 2
        return actions.clamp(self.low, self.high).reshape(len(actions), *self._shape)


class Policy(nn.Module):
    """A stochastic policy with a value function.

    `description` is JSON with the spaces (`observation`, `action`), the `policy`, whether to `normalize` observations,
    and the `precision` of the weights.
    """

    def __init__(self, description: dict[str, Any]) -> None:
        super().__init__()
        self.description = description
        self._choices = description["observation"].get("count")
        shape = (self._choices,) if self._choices else tuple(description["observation"]["shape"])
        self._dtype = getattr(torch, description["precision"])
        self.head = _head(description["action"]).to(self._dtype)
        self.network = _network(description["policy"], shape, self.head.size).to(self._dtype)
        self.normalizer = Normalizer(shape) if description["normalize"] else None

    def encode(self, observations: Tensor) -> Tensor:
        """Raw observations [n, ...] in the network's dtype; discrete ones as one-hot vectors."""
        if self._choices:
            start = self.description["observation"]["start"]
            return F.one_hot(observations.long().reshape(-1) - start, self._choices).to(self._dtype)
        return observations.to(self._dtype)

    def outputs(self, observations: Tensor) -> Tensor:
        """The network outputs for raw observations [n, ...]: the parameters of the head's distribution."""
        seen = self.normalized(observations)
        return self.network.outputs(seen) if isinstance(self.network, ActorCritic) else self.network(seen)[0]

    def sample_actions(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Sampled actions [n, ...] and their log-probabilities [n] for raw observations [n, ...]."""
        outputs = self.outputs(observations)
        # Without the detachment, no gradient would reach the means of Gaussians.
        actions = self.head.sample(outputs).detach()
        return actions, self.head.log_probs(outputs, actions)

    def values(self, observations: Tensor) -> Tensor:
        """The values [n] of raw observations [n, ...]."""
        seen = self.normalized(observations)
        return self.network.values(seen) if isinstance(self.network, ActorCritic) else self.network(seen)[1]

    @torch.inference_mode()
    def act(self, observation: Any, *, deterministic: bool = True) -> Any:
        """The action for one raw observation, as `environment.step` takes it."""
        batch = torch.as_tensor(np.asarray(observation)).unsqueeze(0).to(self.device)
        outputs = self.outputs(batch)
        action = self.head.mode(outputs) if deterministic else self.head.sample(outputs)
        env_action = self.head.to_env_actions(action)[0].cpu()
        return int(env_action) if isinstance(self.head, CategoricalHead) else env_action.numpy()

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    def normalized(self, observations: Tensor) -> Tensor:
        """The network's inputs for raw observations [n, ...]."""
        encoded = self.encode(observations)
        return encoded if self.normalizer is None else self.normalizer(encoded)


def _head(action: dict[str, Any]) -> CategoricalHead | GaussianHead:
    if "count" in action:
        return CategoricalHead(action["count"], action["start"])
    # JSON has no infinity; null means no bound.
    low = [-math.inf if bound is None else bound for bound in action["low"]]
    high = [math.inf if bound is None else bound for bound in action["high"]]
    return GaussianHead(low, high, action["shape"])


def _network(policy: dict[str, Any], shape: tuple[int, ...], outputs: int) -> nn.Module:
    if policy["name"] == "mlp":
        chosen = {name: policy[name] for name in ("hidden", "activation", "dropout", "initialization")}
        return ActorCritic(math.prod(shape), outputs, **chosen)
    module, _, function = policy["builder"].partition(":")
    return getattr(import_module(module), function)(shape, outputs, **policy["arguments"])


def load(folder: str | Path) -> Policy:
    """Load the policy of an unpacked archive in evaluation mode."""
    description = json.loads((Path(folder) / "model.json").read_text())
    policy = Policy(description)
    policy.load_state_dict(load_file(Path(folder) / "model.safetensors"))
    return policy.eval()
