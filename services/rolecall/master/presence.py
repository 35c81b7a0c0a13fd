"""Which nodes are there: when the master last heard of each, on its monotonic clock.

Kept in memory on purpose: a restarted master has heard of nobody, and must give every node its time before it calls one
lost.
"""

import time
from collections.abc import Iterable

from rolecall.master.store.records import NodeRecord
from rolecall.spec.node import NodeState

# Passes come twice a second; what takes this much longer was no pass, but a master that did not run.
_LONGEST_PASS_S = 3.0


class Presence:
    """The last sign of life of every node."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._begun = time.monotonic()
        self._heard: dict[str, float] = {}
        self._last_pass = self._begun

    def notice_pass(self) -> None:
        """Called at every pass of the reconciler: a master that was stopped itself could not hear anybody meanwhile."""
        now = time.monotonic()
        if now - self._last_pass > max(self.timeout_s, _LONGEST_PASS_S):
            self._begun = now
            self._heard = dict.fromkeys(self._heard, now)
        self._last_pass = now

    def hear(self, node: str) -> None:
        """Note a sign of life."""
        self._heard[node] = time.monotonic()

    def forget(self, node: str) -> None:
        """The node left."""
        self._heard.pop(node, None)

    def silence_s(self, node: str) -> float:
        """Seconds since the node was heard, or since the master began to listen."""
        return time.monotonic() - self._heard.get(node, self._begun)

    def is_lost(self, node: str) -> bool:
        """Whether the node was silent for too long."""
        return self.silence_s(node) > self.timeout_s

    def states(self, nodes: Iterable[NodeRecord]) -> list[NodeState]:
        """The nodes as placement and users see them; alive is one that this master has heard lately."""
        return [
            NodeState(
                spec=node.spec,
                alive=node.name in self._heard and not self.is_lost(node.name),
                draining=node.draining,
                heartbeat_age_s=round(self.silence_s(node.name), 3),
            )
            for node in nodes
        ]
