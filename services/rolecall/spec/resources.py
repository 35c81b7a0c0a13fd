"""The number of workers of a role, and the resources of each of them."""

from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidatorFunctionWrapHandler, WrapValidator

from rolecall.spec.model import Request, Value

_MAX = 1_000_000
# The catalogue refuses other numbers with advice.
Count = Annotated[int, Field(strict=True, le=_MAX, json_schema_extra={"minimum": 0})]
_COUNT: TypeAdapter[int] = TypeAdapter(Count)
_Gpus = Annotated[int, Field(strict=True, ge=0, le=_MAX, json_schema_extra={"maximum": 1})]


class Resources(Value):
    """The resources of one worker. What is null is up to placement."""

    gpus: int | None = Field(default=None, ge=0)
    """The number of its GPUs: 0 or 1. By default, roles that compute get a GPU where the node has some."""
    threads: int | None = Field(default=None, ge=1)
    """The number of its CPU threads. By default, roles that compute get the threads of one CPU share, others get 1."""
    busy: bool = False
    """True if its workload makes a worker compute whose role mostly waits. By default, it gets the threads of a CPU
    share."""

    @property
    def described(self) -> str:
        """The requested resources in words, such as `with a GPU and 4 threads`; empty if there are none."""
        device = {None: "", 0: "on the CPU"}.get(self.gpus, "with a GPU")
        threads = "" if self.threads is None else f"{self.threads} thread{'s' * (self.threads != 1)}"
        if not (device and threads):
            return device or (f"with {threads}" if threads else "")
        return f"{device} {'with' if self.gpus == 0 else 'and'} {threads}"


class RoleRequest(Request):
    """The workers of one role in a request."""

    count: Count | None = None
    """The number of workers; by default the workload's."""
    gpus: _Gpus | None = None
    """GPUs of each worker, 0 or 1. By default, trainers, stages and observers get a GPU where their node has some."""
    threads: int | None = Field(default=None, ge=1, le=_MAX, strict=True)
    """CPU threads of each worker; by default those of its share of the node's cores."""


def _by_shape(given: Any, _: ValidatorFunctionWrapHandler) -> int | RoleRequest:
    # An error of a union would name every alternative, although the value's shape decides which one is meant.
    return RoleRequest.model_validate(given) if isinstance(given, dict | RoleRequest) else _COUNT.validate_python(given)


RoleDemand = Annotated[Count | RoleRequest, WrapValidator(_by_shape)]
"""A plain number of workers, or an object with the resources of each."""


def count_and_resources(demand: int | RoleRequest) -> tuple[int | None, Resources]:
    """The number of workers, None for the workload's default, and what each of them gets."""
    if isinstance(demand, int):
        return demand, Resources()
    return demand.count, Resources(gpus=demand.gpus, threads=demand.threads)
