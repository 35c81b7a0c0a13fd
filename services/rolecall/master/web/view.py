"""What the pages show of the API's documents: the cluster by role. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from rolecall.spec.node import NodeDocument
from rolecall.spec.role import Role


@dataclass(slots=True)
class RoleView:
    """The nodes of one role and their slots."""

    role: Role
    nodes: list[NodeDocument] = field(default_factory=list[NodeDocument])

    @property
    def alive(self) -> int:
        return sum(node.alive for node in self.nodes)

    @property
    def slots(self) -> int:
        """The slots of its live nodes."""
        return sum(node.spec.slots for node in self.nodes if node.alive)

    @property
    def used(self) -> int:
        return sum(len(node.workers) for node in self.nodes)


def cluster_view(nodes: Iterable[NodeDocument]) -> list[RoleView]:
    """The nodes by role, in the order of the roles."""
    roles = {role: RoleView(role) for role in Role}
    for node in nodes:
        roles[node.spec.role].nodes.append(node)
    return [view for view in roles.values() if view.nodes]
