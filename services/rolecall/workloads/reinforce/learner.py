"""The agent's mind: the policy, its optimizer, and what it makes of trajectories. Knows nothing of other processes."""

from typing import Any

import torch
from torch import Tensor

from rolecall.kit.builders import check_builder
from rolecall.kit.optimizers import dense_optimizer, scale_rates
from rolecall.runtime.checkpoint import (
    Tensors,
    flatten_optimizer,
    random_state,
    restore_optimizer,
    restore_random_state,
)
from rolecall.workloads.reinforce import algorithms
from rolecall.workloads.reinforce.advantages import advantages
from rolecall.workloads.reinforce.algorithms import Transitions
from rolecall.workloads.reinforce.model import Policy
from rolecall.workloads.reinforce.normalization import RewardScale
from rolecall.workloads.reinforce.params import Custom, Params
from rolecall.workloads.reinforce.seeds import Stream, seed_of
from rolecall.workloads.reinforce.trajectory import Trajectory

_POLICY, _REWARDS = "policy/", "rewards/"


class Learner:
    """Learns from one update's trajectories at a time."""

    def __init__(self, params: Params, spaces: dict[str, Any], device: torch.device) -> None:
        self._params = params
        self._device = device
        self.algorithm = algorithms.make(params.algorithm)
        self.policy = new_policy(params, spaces).to(device)
        self._scale = RewardScale(self.algorithm.gamma)
        self._optimizer = dense_optimizer(params.chosen_optimizer).build(self.policy.parameters())

    def learn(self, update: int, trajectories: dict[int, Trajectory], rate_factor: float) -> dict[str, float]:
        """One update from the trajectories of the observers, by number; the means of its losses."""
        torch.manual_seed(seed_of(self._params.seed, Stream.MINIBATCHES, update))
        scale_rates(self._optimizer, rate_factor)
        parts = [self._transitions(observer, trajectories[observer]) for observer in sorted(trajectories)]
        transitions = Transitions.joined(parts)
        losses = algorithms.learn(self.algorithm, self.policy, self._optimizer, transitions, self._params.max_grad_norm)
        # Only now: acting and learning must have seen the same statistics.
        if self.policy.normalizer is not None:
            self.policy.normalizer.learn(self.policy.encode(transitions.observations))
        return losses

    def weights(self) -> dict[str, Tensor]:
        """A copy of all that the policy is, on the CPU."""
        return {name: value.detach().to("cpu", copy=True) for name, value in self.policy.state_dict().items()}

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint needs."""
        named = {_POLICY + name: value for name, value in self.weights().items()}
        named |= {_REWARDS + name: value.clone() for name, value in self._scale.moments.state_dict().items()}
        return named | flatten_optimizer(self._optimizer) | random_state(self._device)

    def restore(self, tensors: Tensors) -> None:
        """Put back what `tensors` gave."""
        self.policy.load_state_dict(below(tensors, _POLICY))
        self._scale.moments.load_state_dict(below(tensors, _REWARDS))
        restore_optimizer(self._optimizer, tensors)
        restore_random_state(tensors, self._device)

    @torch.no_grad()
    def _transitions(self, observer: int, trajectory: Trajectory) -> Transitions:
        """The valid steps of one trajectory, with their advantages."""
        outcomes, decisions = trajectory.outcomes, trajectory.decisions
        rewards = self._scale.scaled(observer, outcomes) if self._params.normalize_rewards else outcomes.rewards
        values = self._values(trajectory.observations)
        found = advantages(
            rewards.to(values),
            values,
            outcomes.terminated,
            outcomes.truncated,
            gamma=self.algorithm.gamma,
            gae_lambda=self.algorithm.gae_lambda,
        )
        columns = (decisions.observations, decisions.actions, decisions.log_probs, values[:-1], found)
        return Transitions(*(column[outcomes.valid].to(self._device) for column in columns))

    def _values(self, observations: Tensor) -> Tensor:
        """[T + 1, n] of observations [T + 1, n, ...], on the CPU: what follows goes step by step."""
        flat = observations.flatten(0, 1).to(self._device)
        return self.policy.values(flat).cpu().unflatten(0, observations.shape[:2])


def new_policy(params: Params, spaces: dict[str, Any]) -> Policy:
    """The policy with its first weights, on the CPU; the same wherever it is made."""
    if isinstance(params.policy, Custom):
        check_builder(params.policy)  # the exported `model.py`, which imports it, knows nothing of what is allowed
    torch.manual_seed(seed_of(params.seed, Stream.WEIGHTS))
    return Policy(description(params, spaces))


def description(params: Params, spaces: dict[str, Any]) -> dict[str, Any]:
    """All that `model.Policy` needs to be made, as JSON has it."""
    return {
        **spaces,
        "policy": params.policy.model_dump(mode="json"),
        "normalize": params.normalize_observations,
        "precision": params.precision,
    }


def below(tensors: Tensors, prefix: str) -> dict[str, Tensor]:
    """Those whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
