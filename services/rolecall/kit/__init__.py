"""The public surface for authors of workloads, ours and those of other packages. Nothing here knows a workload.

This file has what describes a workload, and never imports torch. `worker` has what a role's `run` stands on, `loop`
the training loop, `params` parameters that workloads share, `optimizers` the optimizers that they name. Input:
`files`, `images`, `tables`, `text`, `data_order`, and `cache` for what a node makes from it once. `builders` runs code
that a job brings along, `parameter_server` keeps weights on servers, `pipelining` plans stages, `export` writes what a
job leaves to its user.

Public names of this package change with a minor release at most, and the changelog says how.
"""

from rolecall.spec.errors import InputError, Stopped, WorkloadError
from rolecall.spec.plan import CheckpointManifest, CheckpointPart
from rolecall.spec.role import Role
from rolecall.spec.workload import Params, RoleCount, Workload

__all__ = [
    "CheckpointManifest",
    "CheckpointPart",
    "InputError",
    "Params",
    "Role",
    "RoleCount",
    "Stopped",
    "Workload",
    "WorkloadError",
]
