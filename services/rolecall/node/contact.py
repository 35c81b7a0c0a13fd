"""A node's contact with its master: since when it is lost, why, and what follows. Pure: times come from the caller."""

from dataclasses import dataclass

from rolecall.node.client import MasterRefuses, MasterUnreachable
from rolecall.node.findings import refused
from rolecall.spec.finding import Finding

_REMEMBERED_S = 600.0
"""How long a refusal that is over stays among the findings."""


@dataclass(slots=True)
class Contact:
    """All times are seconds of one monotonic clock."""

    fence_s: float
    node_timeout_s: float | None = None
    """Silence after which the master counts this node as lost, once the master has said so."""
    answered_at: float | None = None
    """When the master last answered; None before its first answer."""
    answering_since: float | None = None
    """Since when the master has answered every call; None while it does not."""
    _refusal: str = ""
    _refused_since: float | None = None
    _refused_until: float | None = None

    @property
    def was_made(self) -> bool:
        """Whether the master has ever accepted this node."""
        return self.answered_at is not None

    def answered(self, now: float) -> None:
        """Note that the master accepted a call."""
        self.answered_at = now
        if self.answering_since is None:
            self.answering_since = now
        if self._refused_since is not None and self._refused_until is None:
            self._refused_until = now

    def failed(self, error: MasterUnreachable, now: float) -> None:
        """Note that a call failed."""
        self.answering_since = None
        if isinstance(error, MasterRefuses):
            if self._refused_since is None or self._refused_until is not None:
                self._refused_since, self._refused_until = now, None
            self._refusal = str(error)

    def fence_reason(self, *, cut_off: bool, now: float) -> str | None:
        """Why this node must end its workers; None while it need not.

        A master that is merely away (restarted, stopped, behind a failing proxy) gives nobody's gang to others. But a
        master that this node can't reach through the network has by now counted it as lost and may run its gangs
        elsewhere, while workers here hold their GPUs and wait for peers that they can't reach.
        """
        if not cut_off or self.answered_at is None:
            return None
        silent_s = now - self.answered_at
        if silent_s <= max(self.fence_s, self.node_timeout_s or 0.0):
            return None
        return f"this node was cut off from its master for {silent_s:.0f} s (ROLECALL_FENCE_S)"

    def findings(self, now: float) -> tuple[Finding, ...]:
        """What the master should know: that this node was refused not long ago, though it is accepted again."""
        if self._refused_since is None or self._refused_until is None or now - self._refused_until > _REMEMBERED_S:
            return ()
        return (refused(self._refused_until - self._refused_since, self._refusal),)
