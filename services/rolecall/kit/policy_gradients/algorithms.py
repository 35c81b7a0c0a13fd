# pyright: standard
"""Updates of a policy by REINFORCE with a baseline or PPO, whose losses are differentiated in closed form. No I/O, no
clock.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from rolecall.kit.environments.returns import normalize
from rolecall.kit.environments.rollouts import Trajectory
from rolecall.kit.flat import step_of
from rolecall.kit.native import library, policy_loops
from rolecall.kit.policy_gradients.distributions import CategoricalActions, GaussianActions
from rolecall.kit.policy_gradients.policies import DifferentiablePolicy
from rolecall.kit.policy_gradients.transitions import Transitions, gather_transitions

_KL = 3
"""The index of the divergence in the terms of a loss."""


@dataclass(frozen=True, kw_only=True)
class Algorithm(ABC):
    """The common settings of algorithms, and their interface for `update_policy`."""

    takes_one_step: ClassVar[bool] = False
    """True if an update is one optimizer step on all transitions, in their order."""

    gamma: float
    """Discount factor of rewards."""
    gae_lambda: float = 1.0
    """Lambda of generalized advantage estimation; with 1, advantages are discounted returns minus values."""
    value_coefficient: float
    """Coefficient of the value loss."""
    value_clip: float | None = None
    """Clip range of a value in one update; None for values that are not clipped."""
    entropy_coefficient: float
    """Coefficient of the entropy bonus."""
    normalize_advantages: bool
    """Normalize the advantages of each optimizer step to mean 0 and standard deviation 1."""
    target_kl: float | None = None
    """KL divergence of the policy, in nats, at which an update ends early; None for no limit."""

    def gather(
        self, policy: DifferentiablePolicy, trajectories: Sequence[Trajectory]
    ) -> tuple[Transitions, tuple[Tensor, Tensor] | None]:
        """The transitions of trajectories, with advantages by this algorithm's settings.

        For an update of one step, also the results of the policy's `forward` pass over them, or else None.
        """
        return gather_transitions(
            policy, trajectories, gamma=self.gamma, gae_lambda=self.gae_lambda, in_one_pass=self.takes_one_step
        )

    @abstractmethod
    def minibatches(self, count: int) -> Iterator[Tensor]:
        """Indices of the transitions of each optimizer step, in [0, count)."""

    @abstractmethod
    def policy_loss(self, log_probs: Tensor, growths: Tensor, batch: Transitions) -> tuple[Tensor, Tensor]:
        """The policy's loss, and its gradient [b], for log-probabilities [b] of the batch's actions and the relative
        growths [b] of their probabilities."""

    def differentiate(
        self, outputs: Tensor, values: Tensor, batch: Transitions, log_deviation: nn.Parameter | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The terms [4] of one optimizer step's loss, and the loss's gradients of the network outputs [b, outputs] and
        values [b]. Also sets the gradient of the `log_deviation`, if any.

        The terms are the policy's loss, half the mean squared error of the values, the mean entropy, and the KL
        divergence from the policy that sampled the actions, in nats (Schulman's k3 estimator, 2020).
        """
        if log_deviation is None:
            actions = CategoricalActions(outputs, batch.actions)
        else:
            actions = GaussianActions(outputs, batch.actions, log_deviation)
        changes = actions.log_probs - batch.log_probs
        growths = changes.expm1()
        policy_term, log_prob_gradients = self.policy_loss(actions.log_probs, growths, batch)
        value_term, value_gradients = value_loss(values, batch, self.value_clip)
        terms = torch.stack([policy_term, value_term, actions.entropies.mean(), (growths - changes).mean()])
        output_gradients = actions.backward(log_prob_gradients, -self.entropy_coefficient / len(values))
        return terms, output_gradients, value_gradients.mul_(self.value_coefficient)

    def _weights(self, batch: Transitions) -> Tensor:
        return normalize(batch.advantages) if self.normalize_advantages else batch.advantages


def value_loss(values: Tensor, batch: Transitions, clip: float | None) -> tuple[Tensor, Tensor]:
    """Half the mean squared error of values [b], and its gradient [b]. With `clip`, a value that has moved further than
    this has the larger error of the two, with and without the excess.
    """
    errors = values - batch.returns
    if clip is not None:
        moves = values - batch.values
        clipped = batch.values + moves.clamp(-clip, clip) - batch.returns
        # Without the excess, the error is constant.
        constant = (moves.abs() > clip) & (clipped.abs() > errors.abs())
        squares = torch.where(constant, clipped, errors).square_()
        return squares.mean() / 2, torch.where(constant, 0.0, errors).div_(len(errors))
    return errors.square().mean() / 2, errors.div_(len(errors))


@dataclass(frozen=True, kw_only=True)
class Reinforce(Algorithm):
    """REINFORCE with a baseline (Williams, 1992): log-probabilities weighted by advantages."""

    takes_one_step = True

    def minibatches(self, count: int) -> Iterator[Tensor]:
        """One batch of all transitions: they are off-policy after one optimizer step."""
        yield torch.arange(count)

    def policy_loss(self, log_probs: Tensor, growths: Tensor, batch: Transitions) -> tuple[Tensor, Tensor]:
        weights = self._weights(batch)
        return -(log_probs * weights).mean(), weights / -len(weights)


@dataclass(frozen=True, kw_only=True)
class Ppo(Algorithm):
    """PPO (Schulman et al., 2017): several epochs of minibatches with a clipped probability ratio."""

    clip: float
    """Clip range of the probability ratio of an action in one update."""
    epochs: int
    """Number of passes over the transitions of an update."""
    minibatch_size: int
    """Number of transitions per optimizer step."""

    def minibatches(self, count: int) -> Iterator[Tensor]:
        """Shuffled in every epoch. Drops a minibatch of a single transition, which can't be normalized."""
        for _ in range(self.epochs):
            yield from (part for part in torch.randperm(count).split(self.minibatch_size) if len(part) > 1)

    def differentiate(
        self, outputs: Tensor, values: Tensor, batch: Transitions, log_deviation: nn.Parameter | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        known = (batch.log_probs, batch.values, batch.advantages)
        discrete = log_deviation is None and library.are_integers(batch.actions)
        if not discrete or not library.is_native(outputs, values, *known):
            return super().differentiate(outputs, values, batch, log_deviation)
        return policy_loops.ppo(
            outputs,
            values,
            batch.actions,
            *known,
            normalize_advantages=self.normalize_advantages,
            clip=self.clip,
            value_clip=math.inf if self.value_clip is None else self.value_clip,
            value_coefficient=self.value_coefficient,
            entropy_coefficient=self.entropy_coefficient,
        )

    def policy_loss(self, log_probs: Tensor, growths: Tensor, batch: Transitions) -> tuple[Tensor, Tensor]:
        weights = self._weights(batch)
        ratio = growths + 1
        gains = ratio * weights
        clipped = ratio.clamp(1 - self.clip, 1 + self.clip).mul_(weights)
        # The derivative of the ratio is the ratio itself; clipped gains are constant.
        return -torch.minimum(gains, clipped).mean(), torch.where(gains <= clipped, gains, 0.0).div_(-len(gains))


@torch.no_grad()
def update_policy(
    algorithm: Algorithm,
    policy: DifferentiablePolicy,
    optimizer: torch.optim.Optimizer,
    transitions: Transitions,
    *,
    max_grad_norm: float | None,
    results: tuple[Tensor, Tensor] | None = None,
) -> dict[str, float]:
    """One update. An algorithm that takes one step may be given the `results` of its forward pass. Returns the losses,
    averaged over the optimizer steps.
    """
    # Each operation costs more than its arithmetic, so what is linear in the losses waits for the end.
    history: list[Tensor] = []
    step = step_of(optimizer)
    for indices in algorithm.minibatches(len(transitions)):
        batch = transitions.select(indices.to(transitions.advantages.device))
        outputs, values = results or policy.forward(batch.observations)
        terms, output_gradients, value_gradients = algorithm.differentiate(outputs, values, batch, policy.log_deviation)
        history.append(terms)
        if algorithm.target_kl is not None and terms[_KL] > algorithm.target_kl:
            break
        policy.backward(output_gradients, value_gradients)
        if max_grad_norm is not None:
            policy.clip_gradients(max_grad_norm)
        step()
    policy_loss, value_loss, entropy, kl = torch.stack(history).mean(0).tolist()
    loss = policy_loss + algorithm.value_coefficient * value_loss - algorithm.entropy_coefficient * entropy
    return {"loss": loss, "policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, "kl": kl}
