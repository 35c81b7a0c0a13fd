# pyright: standard
"""The transitions of trajectories, with values and advantages. No I/O, no clock."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from rolecall.kit.environments.returns import advantages
from rolecall.kit.environments.rollouts import AgentOutputs, Trajectory
from rolecall.kit.policy_gradients.policies import DifferentiablePolicy

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


@torch.no_grad()
def gather_transitions(
    policy: DifferentiablePolicy,
    trajectories: Sequence[Trajectory],
    *,
    gamma: float,
    gae_lambda: float,
    in_one_pass: bool = False,
) -> tuple[Transitions, tuple[Tensor, Tensor] | None]:
    """The valid steps of the observers' trajectories, on the policy's device.

    With `in_one_pass`, one `forward` pass of the policy over all of them gives their values. Its results are returned,
    too, so that an update of one step needs no other pass.
    """
    recorded = [_valid_outputs(trajectory, policy.device) for trajectory in trajectories]
    results, values = None, [None] * len(trajectories)
    if in_one_pass:
        results = policy.forward(torch.cat([one.observations for one in recorded]))
        values = results[1].cpu().split([len(one.log_probs) for one in recorded])
    parts: list[Transitions] = []
    for trajectory, outputs, known in zip(trajectories, recorded, values, strict=True):
        columns = _values_and_advantages(policy, trajectory, known, gamma, gae_lambda)
        parts.append(Transitions(outputs.observations, outputs.actions, outputs.log_probs, *columns))
    return Transitions.concatenate(parts), results


def _valid_outputs(trajectory: Trajectory, device: torch.device) -> AgentOutputs:
    """The agent outputs of the valid steps."""
    outputs, rows = trajectory.agent_outputs, _rows(trajectory.env_outputs.valid[trajectory.env_outputs.acted])
    columns = (outputs.observations, outputs.actions, outputs.log_probs)
    return AgentOutputs(*(column.index_select(0, rows).to(device) for column in columns))


def _values_and_advantages(
    policy: DifferentiablePolicy, trajectory: Trajectory, known: Tensor | None, gamma: float, gae_lambda: float
) -> list[Tensor]:
    """[b] each, for the valid steps, whose values [b] may be `known`."""
    env_outputs = trajectory.env_outputs
    values = _values(policy, trajectory, known)
    found = advantages(
        env_outputs.rewards.to(values),
        values,
        env_outputs.terminated,
        env_outputs.truncated,
        gamma=gamma,
        gae_lambda=gae_lambda,
    )
    valid = _rows(env_outputs.valid)
    return [column.flatten().index_select(0, valid).to(policy.device) for column in (values[:-1], found)]


def _values(policy: DifferentiablePolicy, trajectory: Trajectory, known: Tensor | None) -> Tensor:
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
        columns.append((needed, torch.cat([policy.values(part.to(policy.device)).cpu() for part in parts])))
    values = columns[0][1].new_zeros(needed.numel())
    for flags, found in columns:
        values.index_copy_(0, _rows(flags), found)
    return values.view(needed.shape)


def _rows(flags: Tensor) -> Tensor:
    """The indices of those that are true, of flags of any shape as one sequence."""
    return flags.flatten().nonzero().squeeze(1)
