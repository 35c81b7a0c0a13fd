"""`preflight`: checks the network between the nodes before a job depends on it; `rolecall doctor` runs it.

It trains nothing. `worker` is what every node runs, in any role. `remote` passes the nodes' messages through the
master, because the gang's own ports are what it checks, and measures one pair of nodes over RPC. All that needs neither
torch nor a gang is in `rolecall.network`: facts, probes, the survey of all pairs, and the findings.
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
    # Shorter than by default, because the start of RPC itself consists of calls, over links that may stall.
    rpc_timeout_s=lambda _: 30.0,
)
