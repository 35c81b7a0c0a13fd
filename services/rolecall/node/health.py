"""The state of the node that `/healthz` shows."""

from dataclasses import dataclass

from rolecall.spec.role import Role


@dataclass(slots=True)
class NodeHealth:
    """Public, so it contains no secrets."""

    name: str
    role: Role
    waiting_for: str = "a route to its master"
    """What the node waits for; empty when it works."""

    def wait_for(self, what: str) -> None:
        """Note what the node waits for; nothing when it works."""
        self.waiting_for = what
