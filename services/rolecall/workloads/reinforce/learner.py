"""The learner: the policy with its optimizer and statistics of rewards, updated from trajectories or episodes.

No I/O, no clock, and independent of other processes.
"""

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
from rolecall.kit.environments.returns import advantages, discounted_sums
from rolecall.kit.environments.rollouts import AgentOutputs, EnvOutputs, Trajectory
from rolecall.kit.flat import join_state, split_state
from rolecall.kit.optimizers import dense_optimizer, scale_rates
from rolecall.workloads.reinforce import params as spec
from rolecall.workloads.reinforce.algorithms import (
    Episode,
    Transitions,
    finish_episodes,
    make_algorithm,
    update_policy,
)
from rolecall.workloads.reinforce.backward import backpropagation, values_of
from rolecall.workloads.reinforce.build import RandomStream, new_policy, seed_of
from rolecall.workloads.reinforce.model import Normalizer
from rolecall.workloads.reinforce.params import Params

_POLICY, _REWARDS = "policy/", "rewards/"
_MAX_REWARD = 10.0
_ROWS = 4096
"""Observations in one pass for values: more would not fit into a core's cache."""


class Learner:
    """Updates the policy from trajectories."""

    def __init__(self, params: Params, spaces: dict[str, Any], device: torch.device) -> None:
        self._params = params
        self._device = device
        self.algorithm = make_algorithm(params.algorithm)
        self.policy = new_policy(params, spaces).to(device)
        self._reward_normalizer = RewardNormalizer(self.algorithm.gamma)
        self._gradients = backpropagation(self.policy, params.max_grad_norm)
        self._values_of = values_of(self.policy)
        # The tutorial's protocol differentiates by autograd, which sets the gradients of the single parameters.
        updated = self._parameters if params.protocol == "tutorial" else self._gradients.parameters
        self._optimizer = dense_optimizer(params.chosen_optimizer).build(updated)

    @torch.no_grad()
    def train(self, update: int, trajectories: dict[int, Trajectory], rate_factor: float) -> dict[str, float]:
        """One update from the trajectories by observer. Returns its mean losses."""
        torch.manual_seed(seed_of(self._params.seed, RandomStream.MINIBATCHES, update))
        scale_rates(self._optimizer, rate_factor)
        observers = sorted(trajectories)
        recorded = [self._valid_outputs(trajectories[observer]) for observer in observers]
        passed = None
        values: list[Tensor | None] = [None] * len(observers)
        if self.algorithm.takes_one_step:
            # Its forward pass gives the values before the update, too.
            seen = torch.cat([one.observations for one in recorded])
            passed = self._gradients.forward(self.policy.normalized(seen))
            values = [*passed[1].cpu().split([len(one.log_probs) for one in recorded])]
        parts = [
            self._transitions(observer, trajectories[observer], own, known)
            for observer, own, known in zip(observers, recorded, values, strict=True)
        ]
        transitions = Transitions.concatenate(parts)
        losses = update_policy(
            self.algorithm, self.policy, self._gradients, self._optimizer, transitions, passed=passed
        )
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

    def _transitions(
        self, observer: int, trajectory: Trajectory, recorded: AgentOutputs, known: Tensor | None
    ) -> Transitions:
        """The valid steps of one trajectory, with their advantages. `recorded` are their agent outputs, on the policy's
        device, and `known` their values [b] if they were computed.
        """
        env_outputs = trajectory.env_outputs
        rewards = env_outputs.rewards
        if self._params.normalize_rewards:
            rewards = self._reward_normalizer.normalize(observer, env_outputs)
        values = self._values(trajectory, known)
        found = advantages(
            rewards.to(values),
            values,
            env_outputs.terminated,
            env_outputs.truncated,
            gamma=self.algorithm.gamma,
            gae_lambda=self.algorithm.gae_lambda,
        )
        valid = _rows(env_outputs.valid)
        computed = (column.flatten().index_select(0, valid).to(self._device) for column in (values[:-1], found))
        return Transitions(recorded.observations, recorded.actions, recorded.log_probs, *computed)

    def _valid_outputs(self, trajectory: Trajectory) -> AgentOutputs:
        """The agent outputs of the valid steps, on the policy's device."""
        outputs, rows = trajectory.agent_outputs, _rows(trajectory.env_outputs.valid[trajectory.env_outputs.acted])
        columns = (outputs.observations, outputs.actions, outputs.log_probs)
        return AgentOutputs(*(column.index_select(0, rows).to(self._device) for column in columns))

    def _values(self, trajectory: Trajectory, known: Tensor | None) -> Tensor:
        """Values [T + 1, n] of the observations before and after valid steps, on the CPU for the sequential advantage
        computation. Others, and those after terminated episodes, are 0. Those before valid steps may be `known`.
        """
        env_outputs = trajectory.env_outputs
        observations = torch.cat([trajectory.agent_outputs.observations, env_outputs.last_observation])
        nobody = torch.zeros_like(env_outputs.valid[:1])
        observed = torch.cat([env_outputs.acted, ~nobody])
        valid = torch.cat([env_outputs.valid, nobody])
        needed = valid.clone()
        needed[1:] |= env_outputs.valid & ~env_outputs.terminated
        if known is not None:
            needed &= ~valid
        columns = [] if known is None else [(valid, known)]
        rows = _rows(needed[observed])
        if len(rows):  # Networks need not accept an empty batch.
            parts = observations.index_select(0, rows).split(_ROWS)
            columns.append((needed, torch.cat([self._values_of(part.to(self._device)).cpu() for part in parts])))
        values = columns[0][1].new_zeros(needed.numel())
        for flags, found in columns:
            values.index_copy_(0, _rows(flags), found)
        return values.view(needed.shape)


def _rows(flags: Tensor) -> Tensor:
    """The indices of those that are true, of flags of any shape as one sequence."""
    return flags.flatten().nonzero().squeeze(1)


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
