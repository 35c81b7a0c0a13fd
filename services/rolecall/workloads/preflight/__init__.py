"""`preflight`: checks the network between the nodes before a job depends on it; `rolecall doctor` runs it.

It trains nothing. `worker` is what every node runs, in any role. `exchange` passes the nodes' messages through the
master, because the gang's own ports are what it checks. `facts` collects what a node knows about itself and compares
the nodes. `pairs` orders the measurements so that they don't disturb each other, `measuring` measures one pair,
`survey` all of them in a bounded time, and `classify` turns results into findings. This file, `params` and `pairs`
never import torch.
"""

from rolecall.spec.role import Role
from rolecall.spec.workload import RoleCount, Workload
from rolecall.workloads.preflight.params import Params

__all__ = ["WORKLOAD", "Params"]

WORKLOAD = Workload(
    name="preflight",
    summary="No training: checks the network between all nodes and measures RPC between each two",
    package=__name__,
    module="worker",
    params=Params,
    roles={role: RoleCount(default=0, least=0) for role in Role},
    per_node=True,
)
