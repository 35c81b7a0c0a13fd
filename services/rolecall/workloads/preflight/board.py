"""The nodes talk through the master: whether they reach one another is what they are about to find out."""

import json
import time

from rolecall.runtime.blobs import sha256_of
from rolecall.runtime.context import WorkerContext
from rolecall.spec.errors import CheckpointError, RendezvousTimeout

_TIMEOUT_S = 30.0
_POLL_S = 0.05


class MasterBoard:
    """A `reach.Board` made of blobs. Rank 0 puts all words on a topic together, so that the others ask for one."""

    def __init__(self, context: WorkerContext) -> None:
        self._blobs = context.artifacts.blobs
        self._attempt = context.launch.attempt
        self._scratch = context.workdir.scratch
        self._node = context.launch.worker.node
        self._nodes = [worker.node for worker in context.launch.gang.workers]
        self._gathers = context.rank == 0

    def post(self, topic: str, text: str) -> None:
        """Tell all nodes this one's word on a topic."""
        self._put(f"{topic}/{self._node}", text)

    def gather(self, topic: str) -> dict[str, str]:
        """The word of every node by its name; raises `RendezvousTimeout` that names who is missing."""
        if not self._gathers:
            first = self._nodes[0]
            return json.loads(self._await({first: f"all/{topic}"}, topic, 2 * _TIMEOUT_S)[first])
        words = self._await({node: f"{topic}/{node}" for node in self._nodes}, topic, _TIMEOUT_S)
        self._put(f"all/{topic}", json.dumps(words))
        return words

    def _put(self, name: str, text: str) -> None:
        path = self._scratch / "said"
        path.write_text(text)
        self._blobs.put(name, path, sha256_of(path))

    def _await(self, names: dict[str, str], topic: str, timeout_s: float) -> dict[str, str]:
        """What each node has put under its name, as soon as all have."""
        give_up = time.monotonic() + timeout_s
        found = {node: self._get(name) for node, name in names.items()}
        while silent := [node for node, text in found.items() if text is None]:
            if time.monotonic() > give_up:
                raise RendezvousTimeout(f"no {topic} within {timeout_s:.0f} s from node {', '.join(silent)}")
            time.sleep(_POLL_S)
            found |= {node: self._get(names[node]) for node in silent}
        return {node: text for node, text in found.items() if text is not None}

    def _get(self, name: str) -> str | None:
        path = self._scratch / "heard"
        try:
            self._blobs.get(f"{self._attempt}/{name}", path)
        except (CheckpointError, FileNotFoundError):
            return None  # How the master and a shared store say that it isn't there yet.
        return path.read_text()
