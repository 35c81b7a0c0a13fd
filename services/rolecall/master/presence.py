"""The liveness of nodes: their last heartbeats, and the results of their self-checks.

A node has a permanent name, and an incarnation (`NodeSpec.started`) that changes when it restarts. All of this is
deliberately in memory only: a restarted master has no heartbeats yet, and gives every node the full timeout.
"""

from collections.abc import Callable, Iterable

from rolecall import __version__
from rolecall.master.store.records import NodeRecord
from rolecall.spec.finding import VERSION, Finding, version
from rolecall.spec.node import NodeSpec, NodeState

# Passes run twice a second. A much longer interval means that the master itself did not run.
_MAX_PASS_S = 3.0
_BETWEEN_CALLS_S = 1.0
"""The time within which a live node calls again after an answer."""
_CALLS_AGAIN_S = 3.0
"""The time within which live nodes call a master that has just started. They retry every 2 s at most.

It is shorter than the time for which a node waits for its name, so that a node whose machine lost power can register.
"""


_PATIENCE = 3.0
"""The silence after which a node is lost however late the master's event loop is, as a multiple of the timeout."""


class Presence:
    """The last heartbeat of every node, on the monotonic clock `now`, and its findings.

    `lag_s` returns the recent delays of the event loop. A node is lost only after a longer silence, because the master
    reads heartbeats late.
    """

    def __init__(self, timeout_s: float, now: Callable[[], float], lag_s: Callable[[], float] = lambda: 0.0) -> None:
        self.timeout_s = timeout_s
        self._lag_s = lag_s
        self.closing = False
        """True while the master exits, so that no node is used for new work."""
        self._now = now
        self._begun = self._last_pass = now()
        self._heartbeats: dict[str, float] = {}
        self._incarnations: dict[str, str] = {}
        self._findings: dict[str, tuple[Finding, ...]] = {}
        self._expected_until: dict[str, float] = {}
        self._replaced: set[str] = set()

    def record_pass(self) -> None:
        """Record a pass of the reconciler. After a long gap the master itself was stopped, so all timeouts restart."""
        now = self._now()
        if now - self._last_pass > max(self.timeout_s, _MAX_PASS_S):
            self._begun = now
            self._heartbeats = dict.fromkeys(self._heartbeats, now)
        self._last_pass = now
        self._expected_until = {one: until for one, until in self._expected_until.items() if until > now}

    def register(self, node: str, incarnation: str) -> None:
        """Record that the node is alive. Nothing is placed on it before its findings are recorded."""
        self.record_heartbeat(node, incarnation)
        self._findings.pop(node, None)

    def record_heartbeat(self, node: str, incarnation: str) -> None:
        """Record a heartbeat of the current incarnation of this name."""
        self._heartbeats[node] = self._now()
        self._incarnations[node] = incarnation

    def record_findings(self, node: str, findings: tuple[Finding, ...]) -> bool:
        """Record the results of a self-check. Returns whether they can change a placement."""
        before = self._findings.get(node)
        self._findings[node] = findings
        return before is None or _levels(before) != _levels(findings)

    def forget(self, node: str) -> None:
        self._heartbeats.pop(node, None)
        self._incarnations.pop(node, None)
        self._findings.pop(node, None)

    def expect_call(self, incarnation: str, wait_s: float = 0.0) -> None:
        """Record that a call of this incarnation is answered in `wait_s`. It counts as running until its next call."""
        self._expected_until[incarnation] = self._now() + wait_s + _BETWEEN_CALLS_S

    def is_expected(self, incarnation: str) -> bool:
        """Return whether this incarnation is certainly running."""
        return self._expected_until.get(incarnation, 0.0) > self._now()

    def is_current(self, node: str, incarnation: str) -> bool:
        """Return whether the node's last heartbeat came from this incarnation."""
        return self._incarnations.get(node) == incarnation

    def mark_replaced(self, incarnation: str) -> None:
        """Record that another incarnation has this one's name. It never gets it back, or the two would alternate."""
        self._replaced.add(incarnation)

    def is_replaced(self, incarnation: str) -> bool:
        return incarnation in self._replaced

    def silence_s(self, node: str) -> float:
        """Seconds since the node's last heartbeat, or since the master started."""
        return self._now() - self._heartbeats.get(node, self._begun)

    @property
    def longest_silence_s(self) -> float:
        """The silence after which a node is certainly lost."""
        return longest_silence_s(self.timeout_s)

    def is_lost(self, node: str) -> bool:
        """Return whether the node has been silent for longer than the timeout and the recent lag."""
        silence_s = self.silence_s(node)
        return silence_s > self.timeout_s and silence_s > min(self.timeout_s + self._lag_s(), self.longest_silence_s)

    def may_be_alive(self, node: str) -> bool:
        """Return whether a live node may have this name. Without a heartbeat, this is so only for a short time."""
        if node in self._heartbeats:
            return not self.is_lost(node)
        return self.silence_s(node) <= min(_CALLS_AGAIN_S, self.timeout_s)

    def is_alive(self, node: str) -> bool:
        """Return whether the node is not lost and has reported findings to this master."""
        return node in self._findings and not self.is_lost(node)

    def states(self, nodes: Iterable[NodeRecord]) -> list[NodeState]:
        """The states of nodes for placement and users (see `is_alive`)."""
        return [
            NodeState(
                spec=node.spec,
                alive=self.is_alive(node.name),
                draining=node.draining or self.closing,
                heartbeat_age_s=round(self.silence_s(node.name), 3),
                findings=self._findings_of(node.spec),
            )
            for node in nodes
        ]

    def _findings_of(self, spec: NodeSpec) -> tuple[Finding, ...]:
        """The node's findings. If its version differs, the master does not wait for its next self-check: with the
        same parameters, its workers could run something else than what this master has validated."""
        found = self._findings.get(spec.name, ())
        if spec.version == __version__:
            return found
        return (*(one for one in found if one.check != VERSION), version(spec.version, __version__))


def longest_silence_s(timeout_s: float) -> float:
    """The silence after which a node is certainly lost, with this timeout."""
    return _PATIENCE * timeout_s


def _levels(findings: Iterable[Finding]) -> set[tuple[str, str]]:
    return {(finding.check, finding.level) for finding in findings}
