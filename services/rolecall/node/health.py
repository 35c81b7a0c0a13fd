"""The state of the node that `/healthz` shows."""

from dataclasses import dataclass

from rolecall.spec.role import Role


@dataclass(slots=True)
class NodeHealth:
    """The health of the node, which is public and contains no secrets."""

    name: str
    role: Role
    waiting_for: str = "a route to its master"
    """The cause for which the node waits; empty when it works."""
    has_registered: bool = False
    """True once its master has accepted it since the program started."""

    def wait_for(self, cause: str) -> None:
        self.waiting_for = cause
