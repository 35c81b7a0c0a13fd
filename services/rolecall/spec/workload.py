"""What a workload declares. The master sees this and nothing else of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from rolecall.spec.role import Role


class Params(BaseModel):
    """The base of a workload's parameters: frozen, and unknown names are errors.

    Checks that the parameters alone can decide belong in validators here (they become a 422 at `POST /jobs`).
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=(), allow_inf_nan=False
    )


P = TypeVar("P", bound=Params)
"""The parameters of one workload."""


class PerNodeParams(Params):
    """The base of the parameters of a workload that runs on every node."""

    nodes: Annotated[tuple[Annotated[str, Field(max_length=63)], ...], Field(max_length=10_000, fail_fast=True)] = ()
    """The nodes to run on; all that are alive and not draining if none is named."""


@dataclass(frozen=True, slots=True)
class RoleCount:
    """How many workers of one role a workload takes."""

    default: int
    least: int = 1
    most: int = 256


@dataclass(frozen=True, slots=True)
class Workload(Generic[P]):
    """A plug-in: which roles a job needs and what each does.

    The function that plays role `r` is `run` in the module that `module_of(r)` names.
    """

    name: str
    summary: str
    package: str
    """The import package of the role files, e.g. `rolecall.workloads.embedding_ddp`."""
    params: type[P]
    roles: dict[Role, RoleCount]
    rpc: bool = True
    """Whether all ranks join one TensorPipe RPC group."""
    process_group: tuple[Role, ...] = ()
    """The roles that form one NCCL or Gloo process group, in rank order."""
    expendable: frozenset[Role] = frozenset()
    """Roles whose loss does not end the attempt."""
    module: str | None = None
    """The module of `package` that plays every role; by default, each role has a module of its own name."""
    per_node: bool = False
    """Whether it runs one worker on each node, which plays the node's role, beside whatever runs there: such a worker
    takes neither slot nor GPU. `params` is then a kind of `PerNodeParams`, and `roles` can't be asked for. Its
    workers are not joined before they run: they look at the network first, and join by `rendezvous.met`."""
    rpc_threads: Callable[[P, dict[Role, int]], int] | None = field(default=None)
    """How many RPC threads each worker needs at least, where the workload parks calls; more are given anyway."""
    check_counts: Callable[[P, dict[Role, int]], None] | None = field(default=None)
    """Raises `ValueError` (legal values in its text) when counts and parameters don't fit together."""
    check_node: Callable[[P, Role], None] | None = field(default=None)
    """Runs torch-free on the node, before the gang meets; raises `InputError` for what only a node can see."""

    def module_of(self, role: Role) -> str:
        """The full name of the module that plays the role."""
        return f"{self.package}.{self.module or role.module}"
