"""The public API for authors of workloads, built-in or in other packages. Independent of every workload.

This file has the names that declare a workload, errors, and `counted` for their texts. It never imports torch.
`worker`: context and RPC helpers for a role's `run`. `job_loop`, `loop`: training loops. `checkpoint`: state of
optimizers and random numbers. `params`: shared parameters, and `divisors`: the nearest valid values for their errors.
`optimizers`, `precision`, `flat`: torch objects for parameters. `metrics`: metrics of classifiers, and `declarations`
of what loops, scores and workers report. Input: `files`, `data_access`, `images`, `tables`, `text`, `environments`,
`data_order`, `same_input`, and `cache` for derived data on a node. `builders`: custom code of a job.
`parameter_server`: sharded weights. `policy_gradients`: updates of policies. `pipelining`, `schedules`,
`csv_schedules`, `own_schedule`, `stages`, `split_backward`, `grid`, `meter`: pipelines. `structure`: custom models.
`export`: archives for users.

`native`, `coloring`, `orders`, `pictures`, `pipeline_steps` and, of `cache`, all but `build_once` and `require_space`
are internal: they serve the modules above, built-in workloads, programs and command, and change with any release.

Public names of all other modules change only with a minor release, and the changelog describes each change.
"""

from rolecall.spec.errors import CheckpointError, InputError, NonFiniteLoss, PeerLost, Stopped, WorkloadError
from rolecall.spec.metric import EVALUATED, Metric, Split
from rolecall.spec.numbers import counted
from rolecall.spec.plan import CheckpointManifest, CheckpointPart
from rolecall.spec.role import Role
from rolecall.spec.state import StopMode
from rolecall.spec.workload import Params, PerNodeParams, RoleCount, Workload, refuse

__all__ = [
    "EVALUATED",
    "CheckpointError",
    "CheckpointManifest",
    "CheckpointPart",
    "InputError",
    "Metric",
    "NonFiniteLoss",
    "Params",
    "PeerLost",
    "PerNodeParams",
    "Role",
    "RoleCount",
    "Split",
    "StopMode",
    "Stopped",
    "Workload",
    "WorkloadError",
    "counted",
    "refuse",
]
