"""The protocol of the PyTorch tutorial: observers that the agent creates remotely call it twice in every step.

The agent keeps a remote reference to each observer, and passes one to itself to `Observer.run_episode`. The observer
then calls `Agent.select_action` and `Agent.report_reward`, which run in the agent's RPC threads while its main thread
waits for the episodes. No RPC thread waits for a call: an episode runs in the main thread of its observer.
"""

import threading
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.distributed import rpc
from torch.futures import Future

from rolecall.kit.environments import creation
from rolecall.kit.worker import current
from rolecall.workloads.reinforce import remote
from rolecall.workloads.reinforce.algorithms import Episode
from rolecall.workloads.reinforce.model import Policy
from rolecall.workloads.reinforce.remote import RunEpisode, check_shutdown, observer_name


@dataclass
class _Record:
    """An episode under construction."""

    observations: list[Tensor] = field(default_factory=list)
    log_probs: list[Tensor] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)


class Agent:
    """Selects an action for each state, and keeps the log-probabilities and rewards of every observer's episode."""

    def __init__(self, policy: Policy, device: torch.device) -> None:
        """`policy` must not change during an episode: the log-probabilities keep references to its weights."""
        self._policy = policy
        self._device = device
        self._lock = threading.Lock()
        self._records: dict[int, _Record] = {}
        self._error: Exception | None = None
        self._observers: dict[int, rpc.RRef[Observer]] = {}

    @cached_property
    def _reference(self) -> "rpc.RRef[Agent]":
        return rpc.RRef(self)

    def create_observers(self, count: int) -> None:
        """Create an `Observer` in each of the job's `count` observers, and keep a reference to it."""
        self._observers = {
            rank: rpc.remote(rpc.get_worker_info(observer_name(rank)), Observer) for rank in range(count)
        }

    def release_observers(self) -> None:
        """Drop the references to the observers before these leave: RPC warns of references that remain."""
        self._observers.clear()

    def start_episode(self, observer: int, seed: int) -> Future[None]:
        """Have an observer run an episode. The future is done when it has ended, and fails if the observer is lost."""
        self.begin(observer)
        # No timeout: episodes may be long, and an observer that dies closes its connection.
        return self._observers[observer].rpc_async(timeout=0).run_episode(self._reference, seed)

    def begin(self, observer: int) -> None:
        """Begin the record of an observer's episode."""
        self._records[observer] = _Record()

    def select_action(self, observer: int, state: Tensor) -> Tensor:
        """Called by observers: the environment action [...] for a raw observation [...]."""
        try:
            with self._lock:  # A custom network may not support concurrent calls.
                actions, log_probs = self._policy.sample_actions(state.unsqueeze(0).to(self._device))
            env_action = self._policy.head.to_env_actions(actions)[0]
        except Exception as error:
            self._error = error
            raise
        record = self._records[observer]
        record.observations.append(state)
        record.log_probs.append(log_probs[0])
        return env_action.detach().cpu()

    def report_reward(self, observer: int, reward: float) -> None:
        """Called by observers: the reward of the action that was selected last."""
        self._records[observer].rewards.append(reward)

    def episode(self, observer: int) -> Episode:
        """The observer's episode after its end."""
        record = self._records.pop(observer)
        rewards = torch.tensor(record.rewards, dtype=torch.float64)
        return Episode(torch.stack(record.observations), torch.stack(record.log_probs), rewards)

    def check(self) -> None:
        """Raise the error of an action's selection, if any: it is not the observer's, which gets it, too."""
        if self._error is not None:
            raise self._error


class Observer:
    """Runs episodes for the agent, in a process with the role observer."""

    def __init__(self) -> None:
        self._rank = current().role_rank

    @cached_property
    def _environment(self) -> creation.Env:
        # Created in the main thread, whose errors are this worker's and not the caller's.
        return creation.make(current().params.environment)

    @rpc.functions.async_execution
    def run_episode(self, agent: rpc.RRef[Agent], seed: int) -> Future[None]:
        """Called by the agent: run an episode in the main thread."""
        return remote.mailbox.post(RunEpisode(lambda: self._run(agent, seed)))

    def _run(self, agent: rpc.RRef[Agent], seed: int) -> None:
        state, _ = self._environment.reset(seed=seed)
        kind, ended = self._environment.action_space.dtype, False
        while not ended:
            check_shutdown()
            action = agent.rpc_sync().select_action(self._rank, torch.as_tensor(np.asarray(state)))
            # With an empty index, NumPy returns a choice as a scalar and other actions as arrays.
            state, reward, terminated, truncated, _ = self._environment.step(action.numpy().astype(kind)[()])
            agent.rpc_sync().report_reward(self._rank, float(reward))
            ended = terminated or truncated
