"""Batched inference in the agent for observers that request actions.

A batch is processed when it is full or the deadline of its first request has passed, so that a slow observer does not
block the others.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed import rpc

from rolecall.kit.environments.rollouts import AgentOutputBuffer, AgentOutputs
from rolecall.kit.worker import measurements
from rolecall.spec import metric
from rolecall.workloads.reinforce.model import Policy


@dataclass(frozen=True, slots=True)
class ActionRequest:
    """One observer's request for actions."""

    observer: int
    observations: Tensor
    """[n, ...], raw."""
    reply: torch.futures.Future[Tensor]
    """Environment actions [n, ...]."""
    arrived: float
    """By `time.perf_counter`."""


# RPC handlers can reach the agent only by a module-level name.
_requests: queue.SimpleQueue[ActionRequest | None] = queue.SimpleQueue()


@rpc.functions.async_execution
def act(observer: int, observations: Tensor) -> torch.futures.Future[Tensor]:
    """Called by observers: the environment actions for these observations."""
    reply: torch.futures.Future[Tensor] = torch.futures.Future()
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
        self._serving: Future[None] | None = None

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
