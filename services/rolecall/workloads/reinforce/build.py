# pyright: standard
"""Builds a job's policy and its learner: the policy with its optimizer and statistics of rewards. Independent of other
processes.

All random numbers have seeds that are derived from the job's seed, a purpose and a position. So they don't depend on
earlier ones, and a resumed job gets the same as an uninterrupted one.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rolecall.kit.builders import check_builder
from rolecall.kit.checkpoint import Tensors, random_state, restore_optimizer, restore_random_state, strip_prefix
from rolecall.kit.environments.returns import discounted_returns, discounted_sums, normalize
from rolecall.kit.environments.rollouts import EnvOutputs, Trajectory
from rolecall.kit.flat import join_state, split_state
from rolecall.kit.optimizers import dense_optimizer, scale_rates
from rolecall.kit.policy_gradients.algorithms import Algorithm, Ppo, Reinforce, update_policy
from rolecall.kit.policy_gradients.mlp import Layers
from rolecall.kit.policy_gradients.policies import AutogradPolicy, DifferentiablePolicy, MlpPolicy
from rolecall.workloads.reinforce import params as spec
from rolecall.workloads.reinforce.model import ActorCritic, GaussianHead, Normalizer, Policy
from rolecall.workloads.reinforce.params import Custom, Params

_POLICY, _REWARDS = "policy/", "rewards/"
_MAX_REWARD = 10.0


class RandomStream(IntEnum):
    """The purposes of seeds."""

    WEIGHTS = 0
    ENVIRONMENTS = 1
    ACTIONS = 2
    MINIBATCHES = 3


def seed_of(seed: int, stream: RandomStream, *position: int) -> int:
    """The seed of a stream at a position, such as (observer, update); in [0, 2^63)."""
    return seeds_of(seed, stream, *position, count=1)[0]


def seeds_of(seed: int, stream: RandomStream, *position: int, count: int) -> list[int]:
    """`count` independent seeds for one position."""
    words = np.random.SeedSequence([seed, int(stream), *position]).generate_state(count, np.uint64)
    return [int(word >> np.uint64(1)) for word in words]


def new_policy(params: Params, spaces: dict[str, Any]) -> Policy:
    """The policy with its initial weights, on the CPU; the same in every process."""
    if isinstance(params.policy, Custom):
        check_builder(params.policy)  # `model.py`, which imports it, is standalone and can't check
    torch.manual_seed(seed_of(params.seed, RandomStream.WEIGHTS))
    description = {
        **spaces,
        "policy": params.policy.model_dump(mode="json"),
        "normalize": params.normalize_observations,
        "precision": params.precision,
    }
    return Policy(description)


def outputs_of(policy: Policy) -> Callable[[Tensor], Tensor]:
    """The fastest way to `policy.outputs` without autograd graphs. It keeps references to the parameters."""
    network = policy.network
    if not isinstance(network, ActorCritic) or network.has_dropout:
        return policy.outputs
    layers = Layers(network.actor)
    return lambda observations: layers.outputs(policy.normalized(observations).flatten(1))


def differentiable(policy: Policy) -> DifferentiablePolicy:
    """The fastest way to the gradients of this policy."""
    network, head = policy.network, policy.head
    log_deviation = head.log_deviation if isinstance(head, GaussianHead) else None
    if isinstance(network, ActorCritic) and not network.has_dropout:
        return MlpPolicy(policy, network.actor, network.critic, policy.normalized, log_deviation)
    return AutogradPolicy(policy, network, policy.normalized, log_deviation)


def make_algorithm(chosen: spec.Reinforce | spec.Ppo) -> Algorithm:
    if isinstance(chosen, spec.Reinforce):
        return Reinforce(**chosen.model_dump(exclude={"name", "returns"}))
    return Ppo(**chosen.model_dump(exclude={"name", "steps"}))


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode of T steps in the tutorial's form, as the agent recorded it."""

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


class Learner:
    """Updates the policy from trajectories or episodes."""

    def __init__(self, params: Params, spaces: dict[str, Any], device: torch.device) -> None:
        self._params = params
        self._device = device
        self._algorithm = make_algorithm(params.algorithm)
        self.policy = new_policy(params, spaces).to(device)
        self._differentiable = differentiable(self.policy)
        self._reward_normalizer = RewardNormalizer(params.algorithm.gamma)
        # The tutorial's protocol differentiates by autograd, which sets the gradients of the single parameters.
        updated = self._parameters if params.protocol == "tutorial" else self._differentiable.parameters
        self._optimizer = dense_optimizer(params.chosen_optimizer).build(updated)

    def train(self, update: int, trajectories: dict[int, Trajectory], rate_factor: float) -> dict[str, float]:
        """One update from the trajectories by observer. Returns its mean losses."""
        torch.manual_seed(seed_of(self._params.seed, RandomStream.MINIBATCHES, update))
        scale_rates(self._optimizer, rate_factor)
        with self._differentiable.updating():
            normalized = [self._normalized(observer, trajectories[observer]) for observer in sorted(trajectories)]
            transitions, results = self._algorithm.gather(self._differentiable, normalized)
            losses = update_policy(
                self._algorithm,
                self._differentiable,
                self._optimizer,
                transitions,
                max_grad_norm=self._params.max_grad_norm,
                results=results,
            )
            self._update_normalizer(transitions.observations)
        return losses

    def finish_episodes(self, episodes: dict[int, Episode], rate_factor: float) -> dict[str, float]:
        """The tutorial's `finish_episode`: one update from one episode of each observer. Returns its loss.

        The loss is the sum of the negative log-probabilities over all steps, weighted by the discounted returns,
        normalized over all episodes. With `returns: joined`, as in the tutorial, the episodes' rewards are summed as of
        one long episode; otherwise returns end with their episode.
        """
        algorithm, max_norm = self._params.algorithm, self._params.max_grad_norm
        assert isinstance(algorithm, spec.Reinforce)  # the parameters require it
        scale_rates(self._optimizer, rate_factor)
        ordered = [episodes[observer] for observer in sorted(episodes)]
        rewards = [episode.rewards for episode in ordered]
        sequences = [torch.cat(rewards)] if algorithm.returns == "joined" else rewards
        weights = torch.cat([discounted_returns(one, algorithm.gamma) for one in sequences])
        if algorithm.normalize_advantages:
            weights = normalize(weights, torch.finfo(torch.float32).eps)
        log_probs = torch.cat([episode.log_probs for episode in ordered])
        loss = -(log_probs * weights.to(log_probs)).sum()
        self._optimizer.zero_grad()
        loss.backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(self._parameters, max_norm)
        self._optimizer.step()
        self._update_normalizer(torch.cat([episode.observations for episode in ordered]).to(self._device))
        return {"loss": loss.item()}

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

    def _normalized(self, observer: int, trajectory: Trajectory) -> Trajectory:
        """The trajectory with normalized rewards, if the job normalizes them."""
        if not self._params.normalize_rewards:
            return trajectory
        rewards = self._reward_normalizer.normalize(observer, trajectory.env_outputs)
        return replace(trajectory, env_outputs=trajectory.env_outputs._replace(rewards=rewards))


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
