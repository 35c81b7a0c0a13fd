"""The capacity of the live nodes for a gang. Pure."""

from collections.abc import Iterable, Mapping

from rolecall.master.field_errors import FieldError, field_error
from rolecall.master.placement import needs_of
from rolecall.master.seats import least_slots
from rolecall.spec.node import NodeState
from rolecall.spec.resources import Resources
from rolecall.spec.role import Role


def lacking(resources: Mapping[Role, Resources], nodes: Iterable[NodeState]) -> list[FieldError]:
    """The field errors of resources that no live node of the role has, for roles with live nodes."""
    live = [node.spec for node in nodes if node.alive]
    errors: list[FieldError] = []
    for role, own in resources.items():
        machines = [spec.machine for spec in live if spec.role is role]
        fitting = [machine for machine in machines if machine.gpus] if own.gpus else machines
        if machines and not fitting:
            legal = f"0, or start a node of the role {role} that sees a GPU"
            errors.append(field_error(f"roles.{role}.gpus", f"no live {role} node has a GPU", own.gpus, legal))
        elif machines and own.threads and own.threads > (most := max(machine.cores for machine in fitting)):
            which = f"live {role} node with a GPU" if own.gpus else f"live {role} node"
            message = f"no {which} has more than {most} core{'s' * (most != 1)}"
            errors.append(field_error(f"roles.{role}.threads", message, own.threads, f"1 to {most}"))
    return errors


def slots_needed(roles: Mapping[Role, int], resources: Mapping[Role, Resources], nodes: Iterable[NodeState]) -> int:
    """The slots that a gang takes at least from its owner's limit, wherever it is placed."""
    live = [node.spec for node in nodes if node.alive]
    return sum(count * least_slots(need, live) for need, count in needs_of(roles, resources).items())
