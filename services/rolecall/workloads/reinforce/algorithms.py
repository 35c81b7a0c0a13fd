"""How the policy learns from transitions: REINFORCE with a baseline, and PPO. No I/O, no clock."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import torch
from torch import Tensor, nn

from rolecall.workloads.reinforce import params as spec
from rolecall.workloads.reinforce.model import Policy


@dataclass(frozen=True, slots=True)
class Transitions:
    """What one update learns from; b transitions of all observers together."""

    observations: Tensor
    """[b, ...], raw."""
    actions: Tensor
    """[b, ...], as the policy drew them."""
    log_probs: Tensor
    """[b], of the policy that drew them."""
    values: Tensor
    """[b], expected before the update."""
    advantages: Tensor
    """[b]."""

    def __len__(self) -> int:
        return len(self.advantages)

    @property
    def returns(self) -> Tensor:
        """[b], what the values should have been."""
        return self.values + self.advantages

    @staticmethod
    def joined(parts: "Sequence[Transitions]") -> "Transitions":
        """All of several observers' in one."""
        return Transitions(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Transitions)))

    def at(self, indices: Tensor) -> "Transitions":
        """Those with these numbers."""
        return Transitions(*(getattr(self, field.name)[indices] for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Losses:
    """The parts of one optimizer step's loss; scalars."""

    policy: Tensor
    value: Tensor
    """The mean squared error, halved."""
    entropy: Tensor
    kl: Tensor
    """How far the policy has moved since the actions were drawn, in nats (Schulman's k3 estimate, 2020)."""

    def total(self, value_coefficient: float, entropy_coefficient: float) -> Tensor:
        """What is minimized."""
        return self.policy + value_coefficient * self.value - entropy_coefficient * self.entropy


class Algorithm(Protocol):
    """What `learn` needs of an algorithm."""

    gamma: float
    gae_lambda: float
    value_coefficient: float
    entropy_coefficient: float
    target_kl: float | None

    def batches(self, count: int) -> Iterator[Tensor]:
        """The numbers of the transitions of each optimizer step, out of `count`."""
        ...

    def losses(self, policy: Policy, batch: Transitions) -> Losses:
        """The loss of one optimizer step."""
        ...


class Reinforce:
    """Williams (1992): the gradient of log-probabilities, weighted with how much better than the baseline it went."""

    gae_lambda: float = 1.0
    target_kl: float | None = None

    def __init__(self, params: spec.Reinforce) -> None:
        self.gamma = params.gamma
        self.value_coefficient = params.value_coefficient
        self.entropy_coefficient = params.entropy_coefficient
        self._normalize = params.normalize_advantages

    def batches(self, count: int) -> Iterator[Tensor]:
        """A single step on everything: after it the episodes are those of another policy."""
        yield torch.arange(count)

    def losses(self, policy: Policy, batch: Transitions) -> Losses:
        """Of one step."""
        log_probs, entropies, values = policy.evaluate_actions(batch.observations, batch.actions)
        weights = normalized(batch.advantages) if self._normalize else batch.advantages
        return Losses(
            policy=-(log_probs * weights).mean(),
            value=0.5 * (values - batch.returns).square().mean(),
            entropy=entropies.mean(),
            kl=_kl(log_probs - batch.log_probs),
        )


class Ppo:
    """Schulman et al. (2017): several passes over minibatches, with the ratio of probabilities clipped."""

    def __init__(self, params: spec.Ppo) -> None:
        self.gamma = params.gamma
        self.gae_lambda = params.gae_lambda
        self.value_coefficient = params.value_coefficient
        self.entropy_coefficient = params.entropy_coefficient
        self.target_kl = params.target_kl
        self._params = params

    def batches(self, count: int) -> Iterator[Tensor]:
        """Shuffled in every pass; a last one of a single transition is left out, for it can't be normalised."""
        for _ in range(self._params.epochs):
            yield from (part for part in torch.randperm(count).split(self._params.minibatch_size) if len(part) > 1)

    def losses(self, policy: Policy, batch: Transitions) -> Losses:
        """Of one step on a minibatch."""
        log_probs, entropies, values = policy.evaluate_actions(batch.observations, batch.actions)
        weights = normalized(batch.advantages) if self._params.normalize_advantages else batch.advantages
        change = log_probs - batch.log_probs
        ratio = change.exp()
        clipped = ratio.clamp(1 - self._params.clip, 1 + self._params.clip)
        return Losses(
            policy=-torch.minimum(ratio * weights, clipped * weights).mean(),
            value=0.5 * self._value_errors(values, batch).mean(),
            entropy=entropies.mean(),
            kl=_kl(change),
        )

    def _value_errors(self, values: Tensor, batch: Transitions) -> Tensor:
        errors = (values - batch.returns).square()
        bound = self._params.value_clip
        if bound is None:
            return errors
        held = batch.values + (values - batch.values).clamp(-bound, bound)
        return torch.maximum(errors, (held - batch.returns).square())


def make(params: spec.Reinforce | spec.Ppo) -> Algorithm:
    """The algorithm that the parameters name."""
    return Reinforce(params) if isinstance(params, spec.Reinforce) else Ppo(params)


def learn(
    algorithm: Algorithm,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    transitions: Transitions,
    max_grad_norm: float | None,
) -> dict[str, float]:
    """One update; the means of its losses over the optimizer steps."""
    seen: list[Tensor] = []
    for indices in algorithm.batches(len(transitions)):
        losses = algorithm.losses(policy, transitions.at(indices.to(transitions.advantages.device)))
        total = losses.total(algorithm.value_coefficient, algorithm.entropy_coefficient)
        seen.append(torch.stack([total, losses.policy, losses.value, losses.entropy, losses.kl]).detach())
        if algorithm.target_kl is not None and losses.kl > algorithm.target_kl:
            break
        optimizer.zero_grad()
        total.backward()
        if max_grad_norm is not None:
            nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
        optimizer.step()
    means = torch.stack(seen).mean(0).tolist()
    return dict(zip(("loss", "policy_loss", "value_loss", "entropy", "kl"), means, strict=True))


def normalized(numbers: Tensor) -> Tensor:
    """The same [b] with mean 0 and deviation 1; one number alone stays as it is."""
    return (numbers - numbers.mean()) / (numbers.std() + 1e-8) if len(numbers) > 1 else numbers


def _kl(change: Tensor) -> Tensor:
    """From the changes [b] of the drawn actions' log-probabilities."""
    with torch.no_grad():
        return (change.exp() - 1 - change).mean()
