"""Which nodes are there: when the master last heard of each, on its monotonic clock, and what they said of themselves.

Kept in memory on purpose: a restarted master has heard of nobody, and must give every node its time before it calls one
lost.
"""

import time
from collections.abc import Iterable

from rolecall.master.store.records import NodeRecord
from rolecall.spec.finding import Finding
from rolecall.spec.node import NodeState

# Passes come twice a second; what takes this much longer was no pass, but a master that did not run.
_LONGEST_PASS_S = 3.0
_BETWEEN_CALLS_S = 1.0
"""Within this time a living node calls again whose call was answered."""
_CALLS_AGAIN_S = 3.0
"""Within this time living nodes call a master that has just begun: they try every 2 s at most.

Less than a node waits for its own name: one whose machine lost its power enters before it gives up.
"""


class Presence:
    """The last sign of life of every node, and its last word on itself."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.closing = False
        """Whether the master is about to end: then no node is offered for new work."""
        self._begun = time.monotonic()
        self._heard: dict[str, float] = {}
        self._lives: dict[str, str] = {}
        self._findings: dict[str, tuple[Finding, ...]] = {}
        self._held: dict[str, float] = {}
        self._replaced: set[str] = set()
        self._last_pass = self._begun

    def notice_pass(self) -> None:
        """Called at every pass of the reconciler: a master that was stopped itself could not hear anybody meanwhile."""
        now = time.monotonic()
        if now - self._last_pass > max(self.timeout_s, _LONGEST_PASS_S):
            self._begun = now
            self._heard = dict.fromkeys(self._heard, now)
        self._last_pass = now
        self._held = {life: until for life, until in self._held.items() if until > now}

    def hear(self, node: str, life: str) -> None:
        """Note a sign of this life, which bears the name for certain."""
        self._heard[node] = time.monotonic()
        self._lives[node] = life

    def knows(self, node: str, life: str) -> bool:
        """Whether this life bore the name when the node was last heard."""
        return self._lives.get(node) == life

    def note(self, node: str, findings: tuple[Finding, ...]) -> bool:
        """Note what the node says of itself; return whether that is news to a placement."""
        before = self._findings.get(node)
        self._findings[node] = findings
        return before is None or _levels(before) != _levels(findings)

    def enter(self, node: str, life: str) -> None:
        """The node begins a life: it lives, but is not placed on before it has said how it is."""
        self.hear(node, life)
        self._findings.pop(node, None)

    def forget(self, node: str) -> None:
        """The node left."""
        self._heard.pop(node, None)
        self._lives.pop(node, None)
        self._findings.pop(node, None)

    def hold(self, life: str, wait_s: float = 0.0) -> None:
        """A call of this life of a node is answered in `wait_s`: until it calls again it counts as going on."""
        self._held[life] = time.monotonic() + wait_s + _BETWEEN_CALLS_S

    def holds(self, life: str) -> bool:
        """Whether this life of a node goes on for certain."""
        return self._held.get(life, 0.0) > time.monotonic()

    def replace(self, life: str) -> None:
        """Another life has taken this one's name: it can't have it back, or two of them would take turns."""
        self._replaced.add(life)

    def is_replaced(self, life: str) -> bool:
        """Whether this life of a node has lost its name."""
        return life in self._replaced

    def silence_s(self, node: str) -> float:
        """Seconds since the node was heard, or since the master began to listen."""
        return time.monotonic() - self._heard.get(node, self._begun)

    def is_lost(self, node: str) -> bool:
        """Whether the node was silent for too long."""
        return self.silence_s(node) > self.timeout_s

    def may_live(self, node: str) -> bool:
        """Whether the name may be a living node's: of one that never called, this is so only for a moment."""
        return self.silence_s(node) <= (self.timeout_s if node in self._heard else min(_CALLS_AGAIN_S, self.timeout_s))

    def is_alive(self, node: str) -> bool:
        """Whether the node was heard lately, and of itself, since this master began."""
        return node in self._findings and not self.is_lost(node)

    def states(self, nodes: Iterable[NodeRecord]) -> list[NodeState]:
        """The nodes as placement and users see them; alive is one that this master has heard lately, and of itself."""
        return [
            NodeState(
                spec=node.spec,
                alive=self.is_alive(node.name),
                draining=node.draining or self.closing,
                heartbeat_age_s=round(self.silence_s(node.name), 3),
                findings=self._findings.get(node.name, ()),
            )
            for node in nodes
        ]


def _levels(findings: Iterable[Finding]) -> set[tuple[str, str]]:
    return {(finding.check, finding.level) for finding in findings}
