"""`preflight`: looks at the network between the nodes before a job has to find out; `rolecall doctor` runs it.

It trains nothing. `board` lets the nodes talk through the master, for the gang's own ports are what is in doubt;
`facts` says what a node knows of itself and compares it with the others; `pairs` is the order in which ways are
measured, so that they don't disturb each other; `measuring` measures one, `judging` says what that means; `survey`
goes through all of them in a bounded time; `examination` is what every node does, in whatever role. This file,
`params` and `pairs` never import torch.
"""

from rolecall.spec.role import Role
from rolecall.spec.workload import RoleCount, Workload
from rolecall.workloads.preflight.params import Params

__all__ = ["WORKLOAD", "Params"]

WORKLOAD = Workload(
    name="preflight",
    summary="No training: examines the network between all nodes and measures RPC between each two",
    package=__name__,
    params=Params,
    roles={role: RoleCount(default=0, least=0) for role in Role},
    per_node=True,
)
