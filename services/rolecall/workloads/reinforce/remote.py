"""RPC between the agent and the observers: the agent's requests, the pool that sends them, and requests for actions.

The pool gathers replies and drops lost observers. The agent can sample the observers' actions in batches. A batch is
processed when it is full or the deadline of its first request has passed, so that a slow observer does not block the
others. `tutorial` has the calls of the tutorial's protocol.
"""

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import rpc
from torch.futures import Future

from rolecall.kit.environments.rollouts import AgentOutputBuffer, AgentOutputs, EnvOutputs
from rolecall.kit.worker import Mailbox, call, measurements, worker_name
from rolecall.spec import metric
from rolecall.spec.errors import PeerLost
from rolecall.spec.role import Role
from rolecall.workloads.reinforce.model import Policy

Weights = dict[str, Tensor]
_POLL_INTERVAL_S = 0.25
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class CollectRollout:
    """A request for one update's trajectory."""

    update: int
    reset: bool
    """True to reset the environments first."""
    weights: Weights | None
    """The policy's weights; None if the agent samples the actions."""


@dataclass(frozen=True, slots=True)
class RunEvaluation:
    """A request for one full episode per seed."""

    seeds: tuple[int, ...]
    weights: Weights


@dataclass(frozen=True, slots=True)
class RunEpisode:
    """A request of the tutorial's protocol for one episode, which the agent records."""

    run: Callable[[], None]


@dataclass(frozen=True, slots=True)
class RolloutResult:
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
        reason = str(error).strip().partition("\n")[0]
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


@dataclass(frozen=True, slots=True)
class ActionRequest:
    """One observer's request for actions."""

    observer: int
    observations: Tensor
    """[k, ...], raw, of the k environments that need an action."""
    reply: Future[Tensor]
    """Environment actions [k, ...]."""
    arrived: float
    """By `time.perf_counter`."""


# RPC handlers can reach the agent only by a module-level name.
_requests: queue.SimpleQueue[ActionRequest | None] = queue.SimpleQueue()


@rpc.functions.async_execution
def act(observer: int, observations: Tensor) -> Future[Tensor]:
    """Called by observers: the environment actions for these observations."""
    reply: Future[Tensor] = Future()
    _requests.put(ActionRequest(observer, observations, reply, time.perf_counter()))
    return reply


class Inference:
    """Samples actions with a copy of the policy, so that the agent can train concurrently; records its outputs."""

    def __init__(self, policy: Policy, device: torch.device, batch_size: Callable[[], int], deadline_s: float) -> None:
        """`batch_size` returns the number of requests that make a full batch."""
        self._policy = policy
        self._device = device
        self._batch_size = batch_size
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._buffers: dict[int, AgentOutputBuffer] = {}
        self._serving: futures.Future[None] | None = None

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serve requests in a thread while the body runs."""
        with ThreadPoolExecutor(1, "inference") as executor:
            self._serving = executor.submit(self._serve)
            try:
                yield
            finally:
                _requests.put(None)

    def check(self) -> None:
        """Raise the error that ended the thread, if any."""
        if self._serving is not None and self._serving.done():
            self._serving.result()

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        with self._lock:
            self._policy.load_state_dict(weights)

    def start_trajectory(self, observer: int) -> None:
        self._buffers[observer] = AgentOutputBuffer()

    def agent_outputs(self, observer: int) -> AgentOutputs:
        """The agent outputs of this observer's current trajectory."""
        return self._buffers[observer].agent_outputs()

    def _serve(self) -> None:
        while (first := _requests.get()) is not None:
            self._reply(self._collect_batch(first))

    def _collect_batch(self, first: ActionRequest) -> list[ActionRequest]:
        """The first request and those that arrive before its deadline."""
        deadline = time.monotonic() + self._deadline_s
        requests = [first]
        while len(requests) < self._batch_size():
            try:
                request = _requests.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if request is None:
                _requests.put(None)
                break
            requests.append(request)
        return requests

    def _reply(self, requests: list[ActionRequest]) -> None:
        counts = [len(request.observations) for request in requests]
        columns = self._sample_actions(torch.cat([request.observations for request in requests]))
        parts = zip(*(column.split(counts) for column in columns), strict=True)
        for request, (actions, log_probs, env_actions) in zip(requests, parts, strict=True):
            self._buffers[request.observer].add(request.observations, actions, log_probs)
            request.reply.set_result(env_actions)
        answered = time.perf_counter()
        measurements.add(metric.INFERENCE_CALLS, len(requests))
        measurements.add(metric.INFERENCE_BATCHES)
        measurements.add(metric.INFERENCE_SECONDS, sum(answered - request.arrived for request in requests))

    @torch.no_grad()
    def _sample_actions(self, observations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with self._lock:
            actions, log_probs = self._policy.sample_actions(observations.to(self._device))
            env_actions = self._policy.head.to_env_actions(actions)
        return actions.cpu(), log_probs.cpu(), env_actions.cpu()
