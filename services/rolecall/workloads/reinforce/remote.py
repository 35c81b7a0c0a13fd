# pyright: standard
"""RPC between the agent and the observers: the agent's requests, the pool that sends them, and the tutorial's protocol.

The pool gathers replies and drops lost observers.
"""

import math
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributed import rpc
from torch.futures import Future

from rolecall.kit import PeerLost, Role
from rolecall.kit.environments import creation
from rolecall.kit.environments.rollouts import AgentOutputs, EnvOutputs
from rolecall.kit.worker import Mailbox, call, current, worker_name
from rolecall.workloads.reinforce.build import Episode
from rolecall.workloads.reinforce.model import Policy

Weights = dict[str, Tensor]
_POLL_INTERVAL_S = 0.25
_TIMEOUT_S = 5.0


class CollectRollout(NamedTuple):
    """A request for one update's trajectory."""

    update: int
    reset: bool
    """True to reset the environments first."""
    weights: Weights | None
    """The policy's weights; None if the agent samples the actions."""


class RunEvaluation(NamedTuple):
    """A request for one full episode per seed."""

    seeds: tuple[int, ...]
    weights: Weights


@dataclass(frozen=True, slots=True)
class RunEpisode:
    """A request of the tutorial's protocol for one episode, which the agent records."""

    run: Callable[[], None]


class RolloutResult(NamedTuple):
    """The reply to a request."""

    agent_outputs: AgentOutputs | None
    """None if the agent sampled the actions and has recorded them."""
    env_outputs: EnvOutputs


class ShutDown(Exception):
    """The agent has shut this observer down."""


# The state of an observer, which RPC handlers can reach only by module-level names.
mailbox: Mailbox[CollectRollout | RunEpisode | RunEvaluation | None, RolloutResult | None] = Mailbox()
shutdown_requested = threading.Event()
job_stopped = threading.Event()


@rpc.functions.async_execution
def execute(request: CollectRollout | RunEvaluation) -> Future[RolloutResult | None]:
    """Called by the agent: execute a request in the main thread."""
    return mailbox.post(request)


def shutdown(stopped: bool) -> None:
    """Called by the agent: leave, even during a request; `stopped` if the job is not done."""
    if stopped:
        job_stopped.set()
    shutdown_requested.set()
    mailbox.post(None)


def check_shutdown() -> None:
    """Raises `ShutDown` if the agent has shut this observer down."""
    if shutdown_requested.is_set():
        raise ShutDown


def observer_name(rank: int) -> str:
    """The name of an observer in RPC."""
    return worker_name(Role.OBSERVER, rank)


class ObserverPool:
    """All observers of a job. A lost observer is reported and gets no more requests."""

    def __init__(self, count: int, least: int, report_event: Callable[[str], None], poll: Callable[[], None]) -> None:
        """`report_event` reports lost observers; `poll` is called regularly while waiting, and may raise."""
        self.alive = list(range(count))
        self._count = count
        self._least = least
        self._report_event = report_event
        self._poll = poll
        self._evaluating: dict[int, bool] = {}
        """The observers with a pending request, and whether it is for an evaluation."""
        self._rollouts: dict[int, RolloutResult | None] = {}
        self._evaluations: dict[int, RolloutResult] = {}
        self._replies: queue.SimpleQueue[tuple[int, Future[Any]]] = queue.SimpleQueue()

    @property
    def busy_count(self) -> int:
        """The number of observers with a pending request."""
        return len(self._evaluating)

    @property
    def idle(self) -> list[int]:
        return [rank for rank in self.alive if rank not in self._evaluating]

    def send(self, rank: int, request: CollectRollout | RunEvaluation) -> None:
        # No timeout: episodes may be long, and an observer that dies closes its connection.
        reply = call(observer_name(rank), execute, request, timeout=0)
        self.expect(rank, reply, evaluation=isinstance(request, RunEvaluation))

    def expect(self, rank: int, reply: Future[Any], *, evaluation: bool = False) -> None:
        """Have `gather`, or `evaluate`, wait for this reply of an observer."""
        self._evaluating[rank] = evaluation
        reply.add_done_callback(lambda done: self._replies.put((rank, done)))

    def gather(self, share: float) -> dict[int, RolloutResult | None]:
        """Wait for rollouts of this share of the observers. Returns all available rollouts, by observer: None for those
        that the agent recorded.

        Raises `PeerLost` if fewer observers remain than `least_observers`.
        """
        while len(self._rollouts) < math.ceil(share * len(self.alive)) or not self._replies.empty():
            self._receive_reply()
        rollouts, self._rollouts = self._rollouts, {}
        return rollouts

    def evaluate(self, seeds: list[int], weights: Weights) -> list[EnvOutputs]:
        """Run a full episode for every seed on all idle observers; seeds of lost observers are repeated.

        The results are in seed order unless an observer is lost. Raises `PeerLost` as `gather` does.
        """
        env_outputs: list[EnvOutputs] = []
        while seeds:
            while not self.idle:
                self._receive_reply()
            shares = _shares(seeds, self.idle)
            for rank, share in shares.items():
                self.send(rank, RunEvaluation(share, weights))
            while any(rank in self._evaluating for rank in shares):
                self._receive_reply()
            env_outputs += [self._evaluations[rank].env_outputs for rank in sorted(self._evaluations)]
            seeds = [seed for rank, share in shares.items() if rank not in self._evaluations for seed in share]
            self._evaluations = {}
        return env_outputs

    def shutdown(self, *, stopped: bool) -> None:
        replies = [rpc.rpc_async(observer_name(rank), shutdown, (stopped,), timeout=_TIMEOUT_S) for rank in self.alive]
        for reply in replies:
            # An observer may exit before its reply is sent.
            with suppress(RuntimeError):
                reply.wait()

    def _receive_reply(self) -> None:
        """Wait for a reply and store it; an observer whose call fails is lost."""
        while True:
            self._poll()
            with suppress(queue.Empty):
                rank, future = self._replies.get(timeout=_POLL_INTERVAL_S)
                break
        evaluation = self._evaluating.pop(rank)
        try:
            result = future.wait()
        except RuntimeError as error:
            self._drop(rank, error)
            return
        (self._evaluations if evaluation else self._rollouts)[rank] = result

    def _drop(self, rank: int, error: RuntimeError) -> None:
        self.alive.remove(rank)
        # TensorPipe adds the place in its source.
        reason = str(error).strip().partition("\n")[0].partition(" (this error originated")[0]
        lost = f"{observer_name(rank)} is lost ({reason})"
        if len(self.alive) < self._least:
            raise PeerLost(
                f"{lost}: {len(self.alive)} of {self._count} observers remain, but least_observers is {self._least}"
            )
        self._report_event(f"{lost}; continuing with {len(self.alive)} of {self._count} observers")


def _shares(seeds: list[int], ranks: list[int]) -> dict[int, tuple[int, ...]]:
    """Contiguous shares of the seeds for each rank, with sizes that differ by at most one; empty ones are omitted."""
    size, longer = divmod(len(seeds), len(ranks))
    bounds = [index * size + min(index, longer) for index in range(len(ranks) + 1)]
    shares = {rank: tuple(seeds[bounds[i] : bounds[i + 1]]) for i, rank in enumerate(ranks)}
    return {rank: share for rank, share in shares.items() if share}


# The protocol of the PyTorch tutorial: observers that the agent creates remotely call it twice in every step.
#
# The agent keeps a remote reference to each observer, and passes one to itself to `Observer.run_episode`. The observer
# then calls `Agent.select_action` and `Agent.report_reward`, which run in the agent's RPC threads while its main thread
# waits for the episodes. No RPC thread waits for a call: an episode runs in the main thread of its observer.


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
        return mailbox.post(RunEpisode(lambda: self._run(agent, seed)))

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
