"""What the pages show of the API's documents: the cluster by role, and differences of jobs. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rolecall.spec.job import JobDocument
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


@dataclass(frozen=True, slots=True)
class Row:
    """A field in which jobs differ, and its value in each job; None where a job lacks it."""

    name: str
    values: list[str | None]


def differences(jobs: Sequence[JobDocument]) -> list[Row]:
    """The fields of request and result in which the jobs differ."""
    found: defaultdict[str, list[str | None]] = defaultdict(lambda: [None] * len(jobs))
    for place, job in enumerate(jobs):
        fields = {
            "workload": job.workload,
            "roles": {role.value: count for role, count in job.roles.items()},
            "params": job.params,
            "result": job.result or {},
        }
        for name, value in _leaves(fields):
            found[name][place] = value
    return [Row(name, values) for name, values in found.items() if len(set(values)) > 1]


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, one in value.items():  # pyright: ignore[reportUnknownVariableType] - JSON
            yield from _leaves(one, f"{name}.{key}" if name else str(key))  # pyright: ignore[reportUnknownArgumentType]
    else:
        yield name, str(value)  # pyright: ignore[reportUnknownArgumentType]
