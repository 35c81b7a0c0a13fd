# pyright: standard
"""One process that does what `reinforce` does, written again from the papers: no vector environments, no masks.

It plays its environments one after the other, keeps every episode as a list, and takes torch's own distributions for
probabilities. What it shares with the workload are the policy's first weights and the seeds.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, Normal

from rolecall.kit.environments import creation
from rolecall.kit.environments.params import Environment
from rolecall.workloads.reinforce.build import RandomStream, new_policy, seed_of, seeds_of
from rolecall.workloads.reinforce.params import Params


class TutorialAlone:
    """The tutorial's agent without its observers, from whose recorded episodes it learns, after the tutorial's text."""

    def __init__(self, params: Params, *, joined: bool) -> None:
        """`joined`: the rewards of all observers are those of one episode, as in the tutorial."""
        self.policy = new_policy(params, creation.describe(params.environment))
        self.joined = joined
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=0.01)
        self.gamma = 0.99
        self.running_reward = 0.0
        self.losses: list[float] = []

    def finish_episode(self, episodes: list[Any]) -> None:
        """One update from each observer's steps: observation, action, reward."""
        minimum = min(sum(reward for *_, reward in steps) for steps in episodes)
        self.running_reward = 0.05 * minimum + (1 - 0.05) * self.running_reward
        returns: list[float] = []
        for steps in [list(chain(*episodes))] if self.joined else episodes:
            later, found = 0.0, []
            for *_, reward in reversed(steps):
                later = reward + self.gamma * later
                found.insert(0, later)
            returns += found
        weights = torch.tensor(returns, dtype=torch.float64)
        weights = (weights - weights.mean()) / (weights.std() + np.finfo(np.float32).eps.item())
        terms = []
        for (seen, action, _), weight in zip((step for steps in episodes for step in steps), weights, strict=True):
            scores = self.policy.network.get_submodule("actor")(torch.tensor([seen], dtype=torch.float64))
            terms.append(-Categorical(torch.softmax(scores, dim=1)).log_prob(torch.tensor([action])) * weight)
        self.optimizer.zero_grad()
        loss = torch.cat(terms).sum()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())


@dataclass
class Step:
    """One transition; `after` is the observation that followed, even if the episode ended with it."""

    time: int
    before: Any
    action: Tensor
    log_prob: Tensor
    reward: float
    after: Any
    terminated: bool
    ended: bool


@dataclass
class Seat:
    """One environment and where it stands."""

    environment: gymnasium.Env[Any, Any]
    observation: Any
    begins: bool = False
    steps: list[Step] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return bool(self.steps) and self.steps[-1].ended

    def was_truncated_at(self, time: int) -> bool:
        return self.is_over and self.steps[-1].time == time and not self.steps[-1].terminated


class Alone:
    """The whole job in one process."""

    def __init__(self, params: Params, observers: int) -> None:
        self.params = params
        spaces = creation.describe(params.environment)
        self.discrete = "count" in spaces["action"]
        self.policy = new_policy(params, spaces)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=params.chosen_optimizer.lr, eps=1e-5)
        self.seats = [
            [Seat(_environment(params.environment), None) for _ in range(params.environments)] for _ in range(observers)
        ]
        self.idle = set(range(observers))
        self.losses: list[float] = []
        self.changes: list[float] = []
        """The largest change of an action's log-probability between its collection and the begin of each update."""

    def distribution(self, observations: list[Any]) -> Any:
        seen = torch.as_tensor(np.stack(observations)).double()
        outputs = self.policy.network.get_submodule("actor")(seen)
        if self.discrete:
            return Categorical(logits=outputs)
        return Independent(Normal(outputs, self.policy.head.get_parameter("log_deviation").exp()), 1)

    def value(self, observations: list[Any]) -> Tensor:
        seen = torch.as_tensor(np.stack(observations)).double()
        return self.policy.network.get_submodule("critic")(seen).squeeze(-1)

    def run(self, updates: int) -> None:
        for _ in range(updates):
            self.update(range(len(self.seats)))

    def update(self, arrived: Collection[int]) -> None:
        """Learn from the trajectories of these observers. Those of the others are from the policy with which they
        began, which this update does not change.
        """
        number = len(self.losses) + 1
        for observer in sorted(self.idle):
            self.collect(observer, number, self.seats[observer])
        self.idle = set(arrived)
        transitions = [one for observer in sorted(arrived) for one in self.with_advantages(self.seats[observer])]
        self.changes.append(self.change_since_collection([step for step, _, _ in transitions]))
        torch.manual_seed(seed_of(self.params.seed, RandomStream.MINIBATCHES, number))
        self.learn(transitions)

    @torch.no_grad()
    def change_since_collection(self, steps: list[Step]) -> float:
        log_probs = self.distribution([step.before for step in steps]).log_prob(
            torch.stack([step.action for step in steps])
        )
        return (log_probs - torch.stack([step.log_prob for step in steps])).abs().max().item()

    def collect(self, observer: int, update: int, seats: list[Seat]) -> None:
        whole = self.params.algorithm.name == "reinforce"
        if update == 1 or whole:
            seeds = seeds_of(self.params.seed, RandomStream.ENVIRONMENTS, observer, update, count=len(seats))
            for seat, seed in zip(seats, seeds, strict=True):
                seat.observation, _ = seat.environment.reset(seed=seed)
                seat.begins = False
        for seat in seats:
            seat.steps = []
        torch.manual_seed(seed_of(self.params.seed, RandomStream.ACTIONS, observer, update))
        done = 0
        while not self.enough(seats, done):
            self.step(seats, done, whole)
            done += 1

    def enough(self, seats: list[Seat], done: int) -> bool:
        if self.params.algorithm.name == "reinforce":
            return all(seat.is_over for seat in seats)
        return done == self.params.algorithm.steps

    @torch.no_grad()
    def step(self, seats: list[Seat], time: int, whole: bool) -> None:
        """Every seat steps, but for those whose episode is over: they begin a new one, or wait, after a truncation with
        one more draw."""
        acting = [seat for seat in seats if not (whole and seat.is_over) or seat.was_truncated_at(time - 1)]
        distribution = self.distribution([seat.observation for seat in acting])
        actions = self.draw(distribution)
        log_probs = distribution.log_prob(actions)
        for index, seat in enumerate(acting):
            if whole and seat.is_over:
                continue
            if seat.begins:
                seat.observation, _ = seat.environment.reset()
                seat.begins = False
                continue
            after, reward, terminated, truncated, _ = seat.environment.step(self.to_env_actions(actions[index]))
            ended = terminated or truncated
            seat.steps.append(
                Step(time, seat.observation, actions[index], log_probs[index], float(reward), after, terminated, ended)
            )
            seat.observation, seat.begins = after, ended

    def draw(self, distribution: Any) -> Tensor:
        """The same noise as the workload's, whose way of drawing is part of its promise."""
        if self.discrete:
            return (distribution.probs / torch.empty_like(distribution.probs).exponential_()).argmax(-1)
        return distribution.mean + distribution.stddev * torch.randn_like(distribution.mean)

    def to_env_actions(self, action: Tensor) -> Any:
        if self.discrete:
            return int(action)
        space = self.seats[0][0].environment.action_space
        assert isinstance(space, gymnasium.spaces.Box)
        bound = space.high
        return np.clip(action.numpy() * bound, -bound, bound).astype(np.float32)

    @torch.no_grad()
    def with_advantages(self, seats: list[Seat]) -> list[tuple[Step, float, float]]:
        """Each step with its value and advantage, the discounted sum of later errors of values; in order of time."""
        found = []
        algorithm = self.params.algorithm
        gae_lambda = 1.0 if algorithm.name == "reinforce" else algorithm.gae_lambda
        for seat in seats:
            values = self.value([step.before for step in seat.steps])
            next_values = self.value([step.after for step in seat.steps])
            errors = [
                step.reward + (0.0 if step.terminated else algorithm.gamma * float(later)) - float(now)
                for step, now, later in zip(seat.steps, values, next_values, strict=True)
            ]
            for index, step in enumerate(seat.steps):
                advantage, weight = 0.0, 1.0
                for offset in range(index, len(seat.steps)):
                    advantage += weight * errors[offset]
                    weight *= algorithm.gamma * gae_lambda
                    if seat.steps[offset].ended:
                        break
                found.append((step, float(values[index]), advantage))
        return sorted(found, key=lambda row: row[0].time)

    def learn(self, transitions: list[Any]) -> None:
        count = len(transitions)
        algorithm = self.params.algorithm
        if algorithm.name == "reinforce":
            batches = [torch.arange(count)]
        else:
            batches = [
                part
                for _ in range(algorithm.epochs)
                for part in torch.randperm(count).split(algorithm.minibatch_size)
                if len(part) > 1
            ]
        losses = [self.optimize([transitions[int(index)] for index in batch]) for batch in batches]
        self.losses.append(sum(losses) / len(losses))

    def optimize(self, batch: list[Any]) -> float:
        algorithm = self.params.algorithm
        steps = [step for step, _, _ in batch]
        values, advantages = (torch.tensor([row[i] for row in batch], dtype=torch.float64) for i in (1, 2))
        distribution = self.distribution([step.before for step in steps])
        log_probs = distribution.log_prob(torch.stack([step.action for step in steps]))
        weights = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        if algorithm.name == "reinforce":
            gain = (log_probs * weights).mean()
        else:
            ratio = torch.exp(log_probs - torch.stack([step.log_prob for step in steps]))
            bounded = torch.clip(ratio, 1 - algorithm.clip, 1 + algorithm.clip)
            gain = torch.min(ratio * weights, bounded * weights).mean()
        errors = self.value([step.before for step in steps]) - (values + advantages)
        loss = (
            -gain
            + algorithm.value_coefficient * 0.5 * (errors**2).mean()
            - algorithm.entropy_coefficient * distribution.entropy().mean()
        )
        self.optimizer.zero_grad()
        loss.backward()
        assert self.params.max_grad_norm is not None
        nn.utils.clip_grad_norm_(self.policy.parameters(), self.params.max_grad_norm)
        self.optimizer.step()
        return loss.item()


def _environment(chosen: Environment) -> gymnasium.Env[Any, Any]:
    return gymnasium.make(chosen.id, max_episode_steps=chosen.max_episode_steps)
