# pyright: standard
"""Actions for observers that request them: an agent answers several requests with one forward pass of its policy.

A batch is processed when it is full or the deadline of its first request has passed, so that a slow observer does not
block the others.
"""

import queue
import threading
import time
from collections.abc import Callable, Generator
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed import rpc
from torch.futures import Future

from rolecall.kit.environments.rollouts import AgentOutputs
from rolecall.kit.worker import measurements
from rolecall.spec import metric

SampleFn = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
"""Maps raw observations [k, ...] to sampled actions [k, ...], their log-probabilities [k] and the environments' actions
[k, ...]."""


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


class InferenceServer:
    """Samples actions with a copy of the policy, so that the agent can train concurrently; records its outputs."""

    def __init__(self, policy: nn.Module, sample: SampleFn, batch_size: Callable[[], int], deadline_s: float) -> None:
        """`sample` uses the policy; `batch_size` returns the number of requests that make a full batch."""
        self._policy = policy
        self._sample = sample
        self._batch_size = batch_size
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._steps: dict[int, list[tuple[Tensor, Tensor, Tensor]]] = {}
        """By observer, the observations, actions and log-probabilities of the current trajectory's steps."""
        self._serving: futures.Future[None] | None = None

    @contextmanager
    def serving(self) -> Generator[None]:
        """Serve requests in a thread while the body runs."""
        # The first call of torch in a thread fixes its number of torch threads, which is another one during an update.
        with ThreadPoolExecutor(1, "inference", initializer=torch.get_num_threads) as executor:
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
        self._steps[observer] = []

    def agent_outputs(self, observer: int) -> AgentOutputs:
        """The agent outputs of this observer's current trajectory."""
        return AgentOutputs(*map(torch.cat, zip(*self._steps[observer], strict=True)))

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
        with self._lock, torch.no_grad():
            columns = self._sample(torch.cat([request.observations for request in requests]))
        parts = zip(*(column.cpu().split(counts) for column in columns), strict=True)
        for request, (actions, log_probs, env_actions) in zip(requests, parts, strict=True):
            self._steps[request.observer].append((request.observations, actions, log_probs))
            request.reply.set_result(env_actions)
        answered = time.perf_counter()
        measurements.add(metric.INFERENCE_CALLS, len(requests))
        measurements.add(metric.INFERENCE_BATCHES)
        measurements.add(metric.INFERENCE_SECONDS, sum(answered - request.arrived for request in requests))
