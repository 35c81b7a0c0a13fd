"""The public API for authors of workloads, built-in or in other packages. Independent of every workload.

This file declares workloads and never imports torch. `worker`: context and RPC helpers for a role's `run`. `loop`:
training loops. `params`: shared parameters. `optimizers`: the optimizers that parameters name. Input: `files`,
`images`, `tables`, `text`, `data_order`, and `cache` for what a node derives from input once. `builders`: custom code
of a job. `parameter_server`: sharded weights. `pipelining`: pipeline schedules and cuts. `export`: archives for users.

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
