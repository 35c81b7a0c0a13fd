"""Which nodes are alive: when each sent its last heartbeat, and what it found when it examined itself.

A node has a name, which it keeps, and an incarnation (`NodeSpec.started`), which changes when it restarts. All of this
is in memory on purpose: a restarted master has heard nobody, and must give every node its time before it calls one
lost.
"""

from collections.abc import Callable, Iterable

from rolecall.master.store.records import NodeRecord
from rolecall.spec.finding import Finding
from rolecall.spec.node import NodeState

# Passes come twice a second; what takes this much longer was no pass, but a master that did not run.
_MAX_PASS_S = 3.0
_BETWEEN_CALLS_S = 1.0
"""Within this time a living node calls again whose call was answered."""
_CALLS_AGAIN_S = 3.0
"""Within this time living nodes call a master that has just started: they try every 2 s at most.

Less than a node waits for its own name: one whose machine lost its power enters before it gives up.
"""


class Presence:
    """The last heartbeat of every node, on the monotonic clock `now`, and its findings about itself."""

    def __init__(self, timeout_s: float, now: Callable[[], float]) -> None:
        self.timeout_s = timeout_s
        self.closing = False
        """Whether the master is about to end: then no node is offered for new work."""
        self._now = now
        self._begun = self._last_pass = now()
        self._heartbeats: dict[str, float] = {}
        self._incarnations: dict[str, str] = {}
        self._findings: dict[str, tuple[Finding, ...]] = {}
        self._expected_until: dict[str, float] = {}
        self._replaced: set[str] = set()

    def record_pass(self) -> None:
        """Called at every pass of the reconciler: a master that was stopped itself could not hear anybody meanwhile."""
        now = self._now()
        if now - self._last_pass > max(self.timeout_s, _MAX_PASS_S):
            self._begun = now
            self._heartbeats = dict.fromkeys(self._heartbeats, now)
        self._last_pass = now
        self._expected_until = {one: until for one, until in self._expected_until.items() if until > now}

    def register(self, node: str, incarnation: str) -> None:
        """The node is alive, but nothing is placed on it before its findings are recorded."""
        self.record_heartbeat(node, incarnation)
        self._findings.pop(node, None)

    def record_heartbeat(self, node: str, incarnation: str) -> None:
        """Record a heartbeat of the current incarnation of this name."""
        self._heartbeats[node] = self._now()
        self._incarnations[node] = incarnation

    def record_findings(self, node: str, findings: tuple[Finding, ...]) -> bool:
        """What the node found when it examined itself; return whether that is news to a placement."""
        before = self._findings.get(node)
        self._findings[node] = findings
        return before is None or _levels(before) != _levels(findings)

    def forget(self, node: str) -> None:
        """The node left."""
        self._heartbeats.pop(node, None)
        self._incarnations.pop(node, None)
        self._findings.pop(node, None)

    def expect_call(self, incarnation: str, wait_s: float = 0.0) -> None:
        """A call of this incarnation is answered in `wait_s`: until it calls again it counts as running."""
        self._expected_until[incarnation] = self._now() + wait_s + _BETWEEN_CALLS_S

    def is_expected(self, incarnation: str) -> bool:
        """Whether this incarnation runs for certain."""
        return self._expected_until.get(incarnation, 0.0) > self._now()

    def is_current(self, node: str, incarnation: str) -> bool:
        """Whether this incarnation bore the name at the node's last heartbeat."""
        return self._incarnations.get(node) == incarnation

    def mark_replaced(self, incarnation: str) -> None:
        """Another incarnation has taken this one's name: it can't have it back, or the two would take turns."""
        self._replaced.add(incarnation)

    def is_replaced(self, incarnation: str) -> bool:
        """Whether this incarnation has lost its name."""
        return incarnation in self._replaced

    def silence_s(self, node: str) -> float:
        """Seconds since the node's last heartbeat, or since the master began to listen."""
        return self._now() - self._heartbeats.get(node, self._begun)

    def is_lost(self, node: str) -> bool:
        """Whether the node was silent for too long."""
        return self.silence_s(node) > self.timeout_s

    def may_be_alive(self, node: str) -> bool:
        """Whether the name may be a living node's: of one that never called, this is so only for a moment."""
        timeout_s = self.timeout_s if node in self._heartbeats else min(_CALLS_AGAIN_S, self.timeout_s)
        return self.silence_s(node) <= timeout_s

    def is_alive(self, node: str) -> bool:
        """Whether the node is not lost and has recorded its findings since this master began."""
        return node in self._findings and not self.is_lost(node)

    def states(self, nodes: Iterable[NodeRecord]) -> list[NodeState]:
        """The nodes as placement and users see them; see `is_alive`."""
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
