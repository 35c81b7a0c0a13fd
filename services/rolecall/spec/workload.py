"""The declaration of a workload, which is all of it that the master uses."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Annotated, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import InitErrorDetails

from rolecall.spec.metric import Metric, places
from rolecall.spec.role import Role


class Params(BaseModel):
    """The base class of a workload's parameters. They are frozen, and unknown names are errors.

    Put checks that depend only on the parameters into validators: their errors become a 422 of `POST /jobs`.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=(), allow_inf_nan=False
    )


def refuse(problems: Iterable[str]) -> None:
    """Raises all problems of an object at once, if there are any. For validators of parameters.

    Like the message of a `ValueError`, each is shown at the parameter with whose name it begins.
    """
    if found := [ValueError(problem) for problem in problems]:
        errors = [InitErrorDetails(type="value_error", ctx={"error": error}, input={}) for error in found]
        raise ValidationError.from_exception_data("parameters", errors)


P = TypeVar("P", bound=Params)
"""The type of a workload's parameters."""


class PerNodeParams(Params):
    """The base class of the parameters of a workload with `per_node`."""

    nodes: Annotated[tuple[Annotated[str, Field(max_length=63)], ...], Field(max_length=10_000, fail_fast=True)] = ()
    """Nodes to run on. By default, all nodes that are alive and not draining."""


@dataclass(frozen=True, slots=True)
class RoleCount:
    """The default, minimum and maximum number of workers of one role."""

    default: int
    least: int = 1
    most: int = 256


@dataclass(frozen=True, slots=True)
class Workload(Generic[P]):
    """A plug-in that defines the roles of a job and what each does.

    Role `r` is implemented by the function `run` in the module `module_of(r)`.
    """

    name: str
    summary: str
    package: str
    """The import package with the modules of the roles, such as `rolecall.workloads.embedding_ddp`."""
    params: type[P]
    roles: dict[Role, RoleCount]
    metrics: tuple[Metric, ...] = ()
    """The metrics that its workers report. Others are in the job's series, but not in Prometheus."""
    rpc: bool = True
    """True if all ranks join one TensorPipe RPC group."""
    process_group: tuple[Role, ...] = ()
    """The roles that form one NCCL or Gloo process group, in rank order."""
    expendable: frozenset[Role] = frozenset()
    """Roles whose loss does not end the attempt."""
    module: str | None = None
    """The module of `package` that implements all roles; by default, each role has a module with its own name."""
    per_node: bool = False
    """True if a job runs one worker on each node, in the node's own role and in parallel with other workers, without a
    slot or GPU. `params` must then be a subclass of `PerNodeParams`, and requests can't set `roles`. Its
    workers start without a rendezvous, so that they can test the network before they join one."""
    cpu_only: frozenset[Role] = frozenset()
    """Roles that can't use a GPU. Their workers run on the CPU, like every driver, and requests for a GPU are
    errors."""
    busy: frozenset[Role] = frozenset()
    """Roles that compute although they usually wait for calls, such as servers that compute a part of the model. By
    default, their workers get the threads of a CPU share."""
    rpc_threads: Callable[[P, dict[Role, int]], int] | None = field(default=None)
    """The minimum number of RPC threads per worker, for workloads in which RPC calls block. Workers can get more."""
    rpc_timeout_s: Callable[[P], float] | None = field(default=None)
    """The seconds after which an RPC call without a timeout of its own fails; by default 600."""
    check_counts: Callable[[P, dict[Role, int]], None] | None = field(default=None)
    """Raises `ValueError`, with the valid values, if counts and parameters are inconsistent."""
    check_node: Callable[[P, Role], None] | None = field(default=None)
    """Runs in each worker before the rendezvous. Raises `InputError` for what only the worker's node can detect.

    The master imports its module, which therefore must not import torch.
    """

    def __post_init__(self) -> None:
        """Raises `ValueError` if the metrics are inconsistent."""
        places(self.metrics)

    def can_use_gpu(self, role: Role) -> bool:
        """Return whether workers of the role compute on a GPU if they get one."""
        return role is not Role.MASTER and role not in self.cpu_only

    def module_of(self, role: Role) -> str:
        """The full name of the module that implements the role."""
        return f"{self.package}.{self.module or role.module}"
