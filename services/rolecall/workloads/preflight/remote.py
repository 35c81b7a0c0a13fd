"""The communication of the nodes: messages through the master, because their links are not checked yet, and RPC calls
that measure a pair of nodes.
"""

import json
import random
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch
from torch.distributed import rpc

from rolecall.network.links import Links
from rolecall.network.pairs import Speed
from rolecall.network.survey import CALL_S
from rolecall.runtime.blobs import sha256_of
from rolecall.runtime.context import WorkerContext
from rolecall.spec.errors import NoSuchBlob, RendezvousTimeout

TIMEOUT_S = 30.0
_LEAST_POLL_S = 0.05
_POLLS_PER_S = 80.0
"""Of all nodes together, so that the master has time for its other calls."""
_JITTER = 0.25
_PINGS = 20
# In bytes. The first transfers on a connection are slow, and one hiccup must not pass for a slow network.
_WARM_UP = (64 << 10,) * 3
_GROWING = (256 << 10, 1 << 20, 4 << 20, 8 << 20)

Messages = dict[str, str]
"""Each node's message, by the node's name."""


def only_unreachable(messages: Messages) -> Messages:
    """The messages of the topic `links` without the reachable ones, whose number grows with the square of the nodes."""
    links_of = {node: Links.model_validate_json(text).links for node, text in messages.items()}
    return {
        node: Links(links=tuple(link for link in links if link.error)).model_dump_json()
        for node, links in links_of.items()
    }


class BlobExchange:
    """A `links.Exchange` made of blobs. Rank 0 combines all messages on a topic into one blob for the others.

    `shortened` says by topic which part of them the others get, because each of them gets all of it.
    """

    def __init__(
        self,
        context: WorkerContext[Any],
        shortened: Mapping[str, Callable[[Messages], Messages]] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._blobs = context.artifacts.blobs
        self._attempt = context.launch.attempt
        self._scratch = context.workdir.scratch
        self._node = context.launch.worker.node
        self._nodes = [worker.node for worker in context.launch.gang.workers]
        self._gathers = context.rank == 0
        self._shortened = shortened or {}
        self._clock = clock
        self._sleep = sleep

    def post(self, topic: str, text: str) -> None:
        """Publish this node's message on a topic."""
        self._put(f"{topic}/{self._node}", text)

    def gather(self, topic: str) -> Messages:
        """Each node's message by the node's name; raises a `RendezvousTimeout` that names the missing ones."""
        if not self._gathers:
            first = self._nodes[0]
            return json.loads(self._await({first: f"all/{topic}"}, topic, 2 * TIMEOUT_S)[first])
        messages = self._await({node: f"{topic}/{node}" for node in self._nodes}, topic, TIMEOUT_S)
        shorten = self._shortened.get(topic)
        self._put(f"all/{topic}", json.dumps(shorten(messages) if shorten else messages))
        return messages

    def _put(self, name: str, text: str) -> None:
        path = self._scratch / "sent"
        path.write_text(text)
        self._blobs.put(name, path, sha256_of(path))

    def _await(self, names: Messages, topic: str, timeout_s: float) -> Messages:
        """Each node's blob, as soon as all exist."""
        give_up = self._clock() + timeout_s
        found: Messages = {}
        while True:
            # Read before the requests, which take time with many nodes: each node that is named was asked once more.
            late = self._clock() > give_up
            for node in names.keys() - found.keys():
                if (text := self._get(names[node])) is not None:
                    found[node] = text
            missing = [node for node in names if node not in found]
            if not missing:
                return {node: found[node] for node in names}
            if late:
                raise RendezvousTimeout(f"no {topic} within {timeout_s:.0f} s from node {', '.join(missing)}")
            # Longer the more nodes ask, and at random, so that they don't ask all at once.
            jitter = random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311 - not a secret
            self._sleep(jitter * max(_LEAST_POLL_S, len(self._nodes) / _POLLS_PER_S))

    def _get(self, name: str) -> str | None:
        path = self._scratch / "received"
        try:
            self._blobs.get(f"{self._attempt}/{name}", path)
        except NoSuchBlob:
            return None
        return path.read_text()


def measure(peer: str, budget_s: float) -> Speed | str:
    """The speed between this worker and `peer`, within about `budget_s` seconds; or in one line why RPC fails.

    Runs in the calling worker at the request of rank 0.
    """
    share_s = 3 * budget_s / 8
    try:
        ping_s = _ping_s(peer, budget_s / 4)
        sent = _best_rate(lambda size: _call(peer, _swallow, torch.zeros(size, dtype=torch.uint8)), share_s)
        received = _best_rate(lambda size: _call(peer, _produce, size), share_s)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return Speed(1e3 * ping_s, sent / 1e6, received / 1e6)


def _ping_s(peer: str, budget_s: float) -> float:
    taken: list[float] = []
    while len(taken) < _PINGS and sum(taken) < budget_s:
        taken.append(_timed(lambda: _call(peer, _produce, 1)))
    return median(taken)


def _best_rate(transfer: Callable[[int], object], budget_s: float) -> float:
    """Bytes per second of growing transfers; after the warm-up none is begun that would probably exceed the budget."""
    best, spent = 0.0, 0.0
    for number, size in enumerate((*_WARM_UP, *_GROWING)):
        if number >= len(_WARM_UP) and spent + size / best > budget_s:
            break
        took = _timed(lambda size=size: transfer(size))
        best, spent = max(best, size / took), spent + took
    return best


def _timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _call(peer: str, function: Callable[..., Any], argument: Any) -> Any:
    # Not `runtime.remote.call`, which would count the calls in the worker's metrics.
    return rpc.rpc_sync(peer, function, (argument,), timeout=CALL_S)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def _swallow(payload: torch.Tensor) -> int:
    return payload.numel()


def _produce(size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8)
