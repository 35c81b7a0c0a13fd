"""How the node stands with its master, for whoever asks it for its health."""

from dataclasses import dataclass

from rolecall.spec.role import Role


@dataclass(slots=True)
class NodeHealth:
    """Told to everybody, so that it bears nothing that is secret."""

    name: str
    role: Role
    waiting_for: str = "a route to its master"
    """What keeps it from its work; empty when nothing does."""

    def wait_for(self, what: str) -> None:
        """Note what the node waits for; nothing when it works."""
        self.waiting_for = what
