"""Policy updates by REINFORCE with a baseline, PPO, or the tutorial's REINFORCE.

No I/O, no clock, and independent of other processes.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from rolecall.kit.environments.returns import discounted_returns, normalize
from rolecall.kit.flat import step_of
from rolecall.kit.native import library, policy_loops
from rolecall.workloads.reinforce import params as spec
from rolecall.workloads.reinforce.backward import Backpropagation, Distribution, distribution
from rolecall.workloads.reinforce.model import CategoricalHead, GaussianHead, Policy

_KL = 3
"""The index of the divergence in stacked losses."""


@dataclass(frozen=True, slots=True)
class Transitions:
    """The b transitions of one update, from all observers."""

    observations: Tensor
    """[b, ...], raw."""
    actions: Tensor
    """[b, ...], as sampled by the policy."""
    log_probs: Tensor
    """[b], under the policy that sampled the actions."""
    values: Tensor
    """[b], predicted before the update."""
    advantages: Tensor
    """[b]."""

    def __len__(self) -> int:
        return len(self.advantages)

    @property
    def returns(self) -> Tensor:
        """[b], the targets of the value function."""
        return self.values + self.advantages

    @staticmethod
    def concatenate(parts: "Sequence[Transitions]") -> "Transitions":
        """The concatenated transitions of several observers."""
        return Transitions(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Transitions)))

    def select(self, indices: Tensor) -> "Transitions":
        return Transitions(*(getattr(self, field.name).index_select(0, indices) for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode of T steps, as the agent recorded it in the tutorial's protocol."""

    observations: Tensor
    """[T, ...], raw."""
    log_probs: Tensor
    """[T], of the sampled actions, with their autograd graphs."""
    rewards: Tensor
    """[T]."""

    @property
    def episode_returns(self) -> Tensor:
        """[1], undiscounted."""
        return self.rewards.sum(0, keepdim=True)

    @property
    def episode_lengths(self) -> Tensor:
        """[1], in steps."""
        return torch.tensor([len(self.rewards)])


@dataclass(frozen=True, slots=True)
class Losses:
    """The terms of one optimizer step's loss; scalars."""

    policy: Tensor
    value: Tensor
    """The mean squared error, halved."""
    entropy: Tensor
    kl: Tensor
    """The KL divergence from the policy that sampled the actions, in nats (Schulman's k3 estimator, 2020)."""

    def stack(self) -> Tensor:
        """[4], in the order of the fields."""
        return torch.stack([self.policy, self.value, self.entropy, self.kl])


@dataclass(frozen=True, slots=True)
class LossGradients:
    """The gradients of the total loss."""

    log_probs: Tensor
    """[b]."""
    values: Tensor
    """[b]."""
    entropy: float
    """Of each transition's entropy."""


class Algorithm(ABC):
    """The common settings of algorithms, and their interface for `update_policy`."""

    takes_one_step: bool = False
    """True if an update is one optimizer step on all transitions, in their order."""
    gae_lambda: float = 1.0
    target_kl: float | None = None
    value_clip: float | None = None

    def __init__(self, params: spec.Reinforce | spec.Ppo) -> None:
        self.gamma = params.gamma
        self.value_coefficient = params.value_coefficient
        self.entropy_coefficient = params.entropy_coefficient
        self._normalize = params.normalize_advantages

    @abstractmethod
    def minibatches(self, count: int) -> Iterator[Tensor]:
        """Indices of the transitions of each optimizer step, in [0, count)."""

    @abstractmethod
    def policy_loss(self, log_probs: Tensor, growths: Tensor, batch: Transitions) -> tuple[Tensor, Tensor]:
        """The policy's loss, and its gradient [b], for log-probabilities [b] of the batch's actions and the relative
        growths [b] of their probabilities."""

    def differentiate(
        self, head: CategoricalHead | GaussianHead, outputs: Tensor, values: Tensor, batch: Transitions
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The stacked losses [4] of one optimizer step, and the gradients of the network outputs [b, outputs] and
        values [b]. Also sets the gradient of the head's parameters, if any.
        """
        actions = distribution(head, outputs, batch.actions)
        losses, gradients = self.losses(actions, values, batch)
        return losses.stack(), actions.backward(gradients.log_probs, gradients.entropy), gradients.values

    def losses(self, actions: Distribution, values: Tensor, batch: Transitions) -> tuple[Losses, LossGradients]:
        """The loss of one optimizer step and its gradients, for the distribution of the batch's actions and the values
        [b] under the current policy.
        """
        changes = actions.log_probs - batch.log_probs
        growths = changes.expm1()
        policy, log_prob_gradients = self.policy_loss(actions.log_probs, growths, batch)
        value, value_gradients = value_loss(values, batch, self.value_clip)
        losses = Losses(policy, value, actions.entropies.mean(), kl=(growths - changes).mean())
        return losses, LossGradients(
            log_probs=log_prob_gradients,
            values=value_gradients.mul_(self.value_coefficient),
            entropy=-self.entropy_coefficient / len(values),
        )

    def _weights(self, batch: Transitions) -> Tensor:
        return normalize(batch.advantages) if self._normalize else batch.advantages


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


class Reinforce(Algorithm):
    """REINFORCE with a baseline (Williams, 1992): log-probabilities weighted by advantages."""

    takes_one_step = True

    def minibatches(self, count: int) -> Iterator[Tensor]:
        """One batch of all transitions: they are off-policy after one optimizer step."""
        yield torch.arange(count)

    def policy_loss(self, log_probs: Tensor, growths: Tensor, batch: Transitions) -> tuple[Tensor, Tensor]:
        weights = self._weights(batch)
        return -(log_probs * weights).mean(), weights / -len(weights)


class Ppo(Algorithm):
    """PPO (Schulman et al., 2017): several epochs of minibatches with a clipped probability ratio."""

    def __init__(self, params: spec.Ppo) -> None:
        super().__init__(params)
        self.gae_lambda = params.gae_lambda
        self.target_kl = params.target_kl
        self.value_clip = params.value_clip
        self._params = params

    def minibatches(self, count: int) -> Iterator[Tensor]:
        """Shuffled in every epoch. Drops a minibatch of a single transition, which can't be normalized."""
        for _ in range(self._params.epochs):
            yield from (part for part in torch.randperm(count).split(self._params.minibatch_size) if len(part) > 1)

    def differentiate(
        self, head: CategoricalHead | GaussianHead, outputs: Tensor, values: Tensor, batch: Transitions
    ) -> tuple[Tensor, Tensor, Tensor]:
        known = (batch.log_probs, batch.values, batch.advantages)
        discrete = isinstance(head, CategoricalHead) and library.are_integers(batch.actions)
        if not discrete or not library.is_native(outputs, values, *known):
            return super().differentiate(head, outputs, values, batch)
        return policy_loops.ppo(
            outputs,
            values,
            batch.actions,
            *known,
            normalize_advantages=self._normalize,
            clip=self._params.clip,
            value_clip=math.inf if self.value_clip is None else self.value_clip,
            value_coefficient=self.value_coefficient,
            entropy_coefficient=self.entropy_coefficient,
        )

    def policy_loss(self, log_probs: Tensor, growths: Tensor, batch: Transitions) -> tuple[Tensor, Tensor]:
        weights = self._weights(batch)
        ratio = growths + 1
        gains = ratio * weights
        clipped = ratio.clamp(1 - self._params.clip, 1 + self._params.clip).mul_(weights)
        # The derivative of the ratio is the ratio itself; clipped gains are constant.
        return -torch.minimum(gains, clipped).mean(), torch.where(gains <= clipped, gains, 0.0).div_(-len(gains))


def make_algorithm(params: spec.Reinforce | spec.Ppo) -> Algorithm:
    return Reinforce(params) if isinstance(params, spec.Reinforce) else Ppo(params)


@torch.no_grad()
def update_policy(
    algorithm: Algorithm,
    policy: Policy,
    gradients: Backpropagation,
    optimizer: torch.optim.Optimizer,
    transitions: Transitions,
    *,
    passed: tuple[Tensor, Tensor] | None = None,
) -> dict[str, float]:
    """One policy update. `gradients` are those of the policy. An algorithm that takes one step may be given the results
    of its forward pass. Returns the losses, averaged over the optimizer steps.
    """
    # Each operation costs more than its arithmetic, so what is linear in the losses waits for the end.
    history: list[Tensor] = []
    step = step_of(optimizer)
    for indices in algorithm.minibatches(len(transitions)):
        batch = transitions.select(indices.to(transitions.advantages.device))
        outputs, values = passed or gradients.forward(policy.normalized(batch.observations))
        losses, output_gradients, value_gradients = algorithm.differentiate(policy.head, outputs, values, batch)
        history.append(losses)
        if algorithm.target_kl is not None and losses[_KL] > algorithm.target_kl:
            break
        gradients.backward(output_gradients, value_gradients)
        gradients.clip()
        step()
    policy_loss, value_loss, entropy, kl = torch.stack(history).mean(0).tolist()
    loss = policy_loss + algorithm.value_coefficient * value_loss - algorithm.entropy_coefficient * entropy
    return {"loss": loss, "policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, "kl": kl}


def finish_episodes(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    episodes: Sequence[Episode],
    max_grad_norm: float | None,
    *,
    gamma: float,
    normalize_returns: bool,
    join_returns: bool = False,
) -> dict[str, float]:
    """The tutorial's `finish_episode`: one update from one episode of each observer. Returns its loss.

    The loss is the sum of the negative log-probabilities over all steps, weighted by the discounted returns, normalized
    over all episodes. With `join_returns`, as in the tutorial, the episodes' rewards are summed as of one long episode;
    otherwise returns end with their episode.
    """
    rewards = [episode.rewards for episode in episodes]
    sequences = [torch.cat(rewards)] if join_returns else rewards
    weights = torch.cat([discounted_returns(one, gamma) for one in sequences])
    if normalize_returns:
        weights = normalize(weights, torch.finfo(torch.float32).eps)
    log_probs = torch.cat([episode.log_probs for episode in episodes])
    loss = -(log_probs * weights.to(log_probs)).sum()
    optimizer.zero_grad()
    loss.backward()
    if max_grad_norm is not None:
        nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
    optimizer.step()
    return {"loss": loss.item()}
