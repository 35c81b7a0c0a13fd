"""The state of a node's contact with its master, and its consequences. Pure: the caller provides the times."""

from dataclasses import dataclass

from rolecall.node.client import MasterRefuses, MasterUnreachable
from rolecall.node.findings import refused
from rolecall.spec.finding import Finding

_REMEMBERED_S = 600.0
"""The time for which a past refusal stays among the findings."""


@dataclass(slots=True)
class Contact:
    """All times are in seconds, of one monotonic clock."""

    fence_s: float
    node_timeout_s: float | None = None
    """The silence after which the master certainly considers this node lost; None until the master has sent it."""
    answered_at: float | None = None
    """The time of the master's last answer; None before the first one."""
    answering_since: float | None = None
    """The time since which the master has answered every call; None while it does not."""
    _refused_since_by_master: float | None = None
    _refused_at_by_master: float | None = None
    """The first and the last of the refusals by the master itself since its last other answer."""
    _is_refused_by_master: bool = False
    """True if the last call was refused by the master itself."""
    _refusal: str = ""
    _refused_since: float | None = None
    _refused_until: float | None = None

    @property
    def _limit_s(self) -> float:
        """The time after which the master must consider this node lost."""
        return max(self.fence_s, self.node_timeout_s or 0.0)

    @property
    def was_made(self) -> bool:
        """True if the master has ever accepted this node."""
        return self.answered_at is not None

    def answered(self, now: float) -> None:
        self.answered_at = now
        self._refused_since_by_master = None
        self._is_refused_by_master = False
        if self.answering_since is None:
            self.answering_since = now
        if self._refused_since is not None and self._refused_until is None:
            self._refused_until = now

    def failed(self, error: MasterUnreachable, now: float) -> None:
        self.answering_since = None
        self._is_refused_by_master = isinstance(error, MasterRefuses) and error.by_master
        if self._is_refused_by_master:
            # Other failures in between change nothing, but a master that did not answer for long has started again.
            last = self._refused_at_by_master
            if self._refused_since_by_master is None or last is None or now - last > self._limit_s:
                self._refused_since_by_master = now
            self._refused_at_by_master = now
        if isinstance(error, MasterRefuses):
            if self._refused_since is None or self._refused_until is not None:
                self._refused_since, self._refused_until = now, None
            self._refusal = str(error)

    def fence_reason(self, *, partitioned: bool, now: float) -> str | None:
        """The reason why this node must end its workers, or None.

        A master that is only unavailable (restarted, stopped, behind a failing proxy) starts no gangs elsewhere. But a
        master that this node can't reach through the network, or that runs and refuses this node, considers it lost
        and may run its gangs on other nodes, while the workers here keep their GPUs and wait for peers.
        """
        if self.answered_at is None:
            return None
        if partitioned and (silent_s := now - self.answered_at) > self._limit_s:
            return f"this node could not reach its master for {silent_s:.0f} s (ROLECALL_FENCE_S)"
        since = self._refused_since_by_master
        if self._is_refused_by_master and since is not None and (refused_s := now - since) > self._limit_s:
            return f"the master refused this node for {refused_s:.0f} s (ROLECALL_FENCE_S): {self._refusal}"
        return None

    def findings(self, now: float) -> tuple[Finding, ...]:
        """A warning if the master refused this node recently and has accepted it again."""
        if self._refused_since is None or self._refused_until is None or now - self._refused_until > _REMEMBERED_S:
            return ()
        return (refused(self._refused_until - self._refused_since, self._refusal),)
