"""Policy updates by REINFORCE with a baseline, PPO, or the tutorial's REINFORCE, and the learner, which applies them to
trajectories. No I/O, no clock, and independent of other processes.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from rolecall.kit.checkpoint import (
    Tensors,
    random_state,
    restore_optimizer,
    restore_random_state,
    strip_prefix,
)
from rolecall.kit.environments.returns import advantages, discounted_returns, discounted_sums, normalize
from rolecall.kit.environments.rollouts import EnvOutputs, Trajectory
from rolecall.kit.flat import join_state, split_state, step_of
from rolecall.kit.native import library, policy_loops
from rolecall.kit.optimizers import dense_optimizer, scale_rates
from rolecall.workloads.reinforce import params as spec
from rolecall.workloads.reinforce.backward import Backpropagation, Distribution, backpropagation, distribution
from rolecall.workloads.reinforce.build import RandomStream, new_policy, seed_of
from rolecall.workloads.reinforce.model import CategoricalHead, GaussianHead, Normalizer, Policy
from rolecall.workloads.reinforce.params import Params

_POLICY, _REWARDS = "policy/", "rewards/"
_MAX_REWARD = 10.0
_KL = 3
"""The index of the divergence in stacked losses."""
_ROWS = 4096
"""Observations in one pass for values: more would not fit into a core's cache."""


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
) -> dict[str, float]:
    """One policy update. `gradients` are those of the policy. Returns its losses, averaged over the optimizer steps."""
    # Each operation costs more than its arithmetic, so what is linear in the losses waits for the end.
    history: list[Tensor] = []
    step = step_of(optimizer)
    for indices in algorithm.minibatches(len(transitions)):
        batch = transitions.select(indices.to(transitions.advantages.device))
        outputs, values = gradients.forward(policy.normalized(batch.observations))
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


class Learner:
    """Updates the policy from trajectories."""

    def __init__(self, params: Params, spaces: dict[str, Any], device: torch.device) -> None:
        self._params = params
        self._device = device
        self.algorithm = make_algorithm(params.algorithm)
        self.policy = new_policy(params, spaces).to(device)
        self._reward_normalizer = RewardNormalizer(self.algorithm.gamma)
        self._gradients = backpropagation(self.policy, params.max_grad_norm)
        # The tutorial's protocol differentiates by autograd, which sets the gradients of the single parameters.
        updated = self._parameters if params.protocol == "tutorial" else self._gradients.parameters
        self._optimizer = dense_optimizer(params.chosen_optimizer).build(updated)

    def train(self, update: int, trajectories: dict[int, Trajectory], rate_factor: float) -> dict[str, float]:
        """One update from the trajectories by observer. Returns its mean losses."""
        torch.manual_seed(seed_of(self._params.seed, RandomStream.MINIBATCHES, update))
        scale_rates(self._optimizer, rate_factor)
        parts = [self._transitions(observer, trajectories[observer]) for observer in sorted(trajectories)]
        transitions = Transitions.concatenate(parts)
        losses = update_policy(self.algorithm, self.policy, self._gradients, self._optimizer, transitions)
        self._update_normalizer(transitions.observations)
        return losses

    def finish_episodes(self, episodes: dict[int, Episode], rate_factor: float) -> dict[str, float]:
        """One update of the tutorial's protocol from one episode of each observer. Returns its loss."""
        algorithm = self._params.algorithm
        assert isinstance(algorithm, spec.Reinforce)  # the parameters require it
        scale_rates(self._optimizer, rate_factor)
        ordered = [episodes[observer] for observer in sorted(episodes)]
        losses = finish_episodes(
            self.policy,
            self._optimizer,
            ordered,
            self._params.max_grad_norm,
            gamma=algorithm.gamma,
            normalize_returns=algorithm.normalize_advantages,
            join_returns=algorithm.returns == "joined",
        )
        self._update_normalizer(torch.cat([episode.observations for episode in ordered]).to(self._device))
        return losses

    def weights(self) -> dict[str, Tensor]:
        """A copy of the policy's state dict on the CPU."""
        return {name: value.detach().to("cpu", copy=True) for name, value in self.policy.state_dict().items()}

    def tensors(self) -> dict[str, Tensor]:
        """The state of the learner, for checkpoints."""
        named = {_POLICY + name: value for name, value in self.weights().items()}
        rewards = self._reward_normalizer.moments.state_dict()
        named |= {_REWARDS + name: value.clone() for name, value in rewards.items()}
        return named | split_state(self._optimizer, self._parameters) | random_state(self._device)

    def restore(self, tensors: Tensors) -> None:
        self.policy.load_state_dict(strip_prefix(tensors, _POLICY))
        self._reward_normalizer.moments.load_state_dict(strip_prefix(tensors, _REWARDS))
        restore_optimizer(self._optimizer, join_state(tensors, self._optimizer, self._parameters))
        restore_random_state(tensors, self._device)

    @property
    def _parameters(self) -> list[nn.Parameter]:
        return list(self.policy.parameters())

    def _update_normalizer(self, observations: Tensor) -> None:
        """Call it after the update: sampling and training must use the same statistics."""
        if self.policy.normalizer is not None:
            self.policy.normalizer.update(self.policy.encode(observations))

    @torch.no_grad()
    def _transitions(self, observer: int, trajectory: Trajectory) -> Transitions:
        """The valid steps of one trajectory, with their advantages."""
        env_outputs, agent_outputs = trajectory.env_outputs, trajectory.agent_outputs
        rewards = env_outputs.rewards
        if self._params.normalize_rewards:
            rewards = self._reward_normalizer.normalize(observer, env_outputs)
        values = self._values(trajectory)
        found = advantages(
            rewards.to(values),
            values,
            env_outputs.terminated,
            env_outputs.truncated,
            gamma=self.algorithm.gamma,
            gae_lambda=self.algorithm.gae_lambda,
        )
        columns = (agent_outputs.observations, agent_outputs.actions, agent_outputs.log_probs, values[:-1], found)
        valid = env_outputs.valid.flatten().nonzero().squeeze(1)
        return Transitions(*(column.flatten(0, 1).index_select(0, valid).to(self._device) for column in columns))

    def _values(self, trajectory: Trajectory) -> Tensor:
        """Values [T + 1, n] of the observations before and after valid steps, on the CPU for the sequential advantage
        computation. Others, and those after terminated episodes, are 0.
        """
        env_outputs, observations = trajectory.env_outputs, trajectory.observations
        needed = torch.zeros(observations.shape[:2], dtype=torch.bool)
        needed[:-1] = env_outputs.valid
        needed[1:] |= env_outputs.valid & ~env_outputs.terminated
        rows = needed.flatten().nonzero().squeeze(1)
        parts = observations.flatten(0, 1).index_select(0, rows).split(_ROWS)
        found = torch.cat([self.policy.values(part.to(self._device)).cpu() for part in parts])
        return found.new_zeros(needed.numel()).index_copy_(0, rows, found).view(needed.shape)


class RewardNormalizer:
    """Divides rewards by the deviation of the discounted sums of past rewards (Engstrom et al., 2020, section 3)."""

    def __init__(self, gamma: float) -> None:
        self.moments = Normalizer(())
        self._gamma = gamma
        self._sums: dict[int, Tensor] = {}

    def normalize(self, observer: int, env_outputs: EnvOutputs) -> Tensor:
        """The normalized rewards [T, n] of one observer's new trajectory, after updating the statistics with it."""
        if env_outputs.was_reset:
            self._sums[observer] = torch.zeros_like(env_outputs.rewards[0])
        ended = env_outputs.terminated | env_outputs.truncated
        sums = discounted_sums(env_outputs.rewards, ended, self._sums[observer], self._gamma)
        self._sums[observer] = sums[-1] * ~ended[-1]
        self.moments.update(sums[env_outputs.valid])
        return (env_outputs.rewards * (self.moments.variance + 1e-8).rsqrt()).clamp(-_MAX_REWARD, _MAX_REWARD)
