"""The nodes talk through the master: whether they reach one another is what they are about to find out."""

import json
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from rolecall.runtime.blobs import sha256_of
from rolecall.runtime.context import WorkerContext
from rolecall.runtime.reach import Way
from rolecall.spec.errors import NoSuchBlob, RendezvousTimeout
from rolecall.spec.model import Value

TIMEOUT_S = 30.0
_LEAST_POLL_S = 0.05
_POLLS_PER_S = 80.0
"""Of all nodes together: what the master hears of us beside its own work."""
_JITTER = 0.25

Words = dict[str, str]
"""What each node says, by its name."""


class _Ways(Value):
    ways: tuple[Way, ...]


def cut_alone(words: Words) -> Words:
    """Of the nodes' words on the topic `ways` what is cut: what is open grows with the square of their number."""
    told = {node: _Ways.model_validate_json(text).ways for node, text in words.items()}
    return {node: _Ways(ways=tuple(way for way in ways if way.error)).model_dump_json() for node, ways in told.items()}


class MasterBoard:
    """A `reach.Board` made of blobs. Rank 0 puts all words on a topic together, so that the others ask for one.

    `shortened` says by topic what is left of all words for the others, who hear as much each.
    """

    def __init__(
        self, context: WorkerContext[Any], shortened: Mapping[str, Callable[[Words], Words]] | None = None
    ) -> None:
        self._blobs = context.artifacts.blobs
        self._attempt = context.launch.attempt
        self._scratch = context.workdir.scratch
        self._node = context.launch.worker.node
        self._nodes = [worker.node for worker in context.launch.gang.workers]
        self._gathers = context.rank == 0
        self._shortened = shortened or {}

    def post(self, topic: str, text: str) -> None:
        """Tell all nodes this one's word on a topic."""
        self._put(f"{topic}/{self._node}", text)

    def gather(self, topic: str) -> Words:
        """The word of every node by its name; raises `RendezvousTimeout` that names who is missing."""
        if not self._gathers:
            first = self._nodes[0]
            return json.loads(self._await({first: f"all/{topic}"}, topic, 2 * TIMEOUT_S)[first])
        words = self._await({node: f"{topic}/{node}" for node in self._nodes}, topic, TIMEOUT_S)
        shorten = self._shortened.get(topic)
        self._put(f"all/{topic}", json.dumps(shorten(words) if shorten else words))
        return words

    def _put(self, name: str, text: str) -> None:
        path = self._scratch / "said"
        path.write_text(text)
        self._blobs.put(name, path, sha256_of(path))

    def _await(self, names: Words, topic: str, timeout_s: float) -> Words:
        """What each node has put under its name, as soon as all have."""
        give_up = time.monotonic() + timeout_s
        found: Words = {}
        while True:
            # Seen before the look, which takes its time with many nodes: whoever is blamed has been asked once more.
            late = time.monotonic() > give_up
            for node in names.keys() - found.keys():
                if (text := self._get(names[node])) is not None:
                    found[node] = text
            silent = [node for node in names if node not in found]
            if not silent:
                return {node: found[node] for node in names}
            if late:
                raise RendezvousTimeout(f"no {topic} within {timeout_s:.0f} s from node {', '.join(silent)}")
            time.sleep(self._pause_s())

    def _pause_s(self) -> float:
        """Longer the more nodes ask, and never the same, so that they don't ask all at once."""
        spread = random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311 - no secret
        return spread * max(_LEAST_POLL_S, len(self._nodes) / _POLLS_PER_S)

    def _get(self, name: str) -> str | None:
        path = self._scratch / "heard"
        try:
            self._blobs.get(f"{self._attempt}/{name}", path)
        except NoSuchBlob:
            return None
        return path.read_text()
