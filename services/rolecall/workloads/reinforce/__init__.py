"""`reinforce`: an agent that learns from what observers live through in environments of their own.

After the PyTorch tutorial "Getting Started with Distributed RPC Framework", whose agent asks its observers for one step
at a time. Environments are Gymnasium's, algorithms REINFORCE with a baseline and PPO.

Input: `params` says what is played, `check` and `environments` look at it before the gang meets. Observers: `observer`
plays, `collector` records trajectories. Agent: `observers` sends orders to them, `inference` answers their questions,
`advantages`, `algorithms` and `normalization` learn, `training` is the loop. Result: `model` (also what users get),
`export`, `movie`. This file, `params` and `check` import neither torch nor Gymnasium.
"""

from rolecall.spec.role import Role
from rolecall.spec.workload import RoleCount, Workload
from rolecall.workloads.reinforce.check import check_counts, check_node
from rolecall.workloads.reinforce.params import Params

__all__ = ["WORKLOAD", "Params"]

WORKLOAD = Workload(
    name="reinforce",
    summary="Reinforcement learning: an agent learns (PPO, REINFORCE) from observers that play Gymnasium environments",
    package=__name__,
    params=Params,
    roles={
        Role.TRAINER: RoleCount(default=1, least=1, most=1),
        Role.OBSERVER: RoleCount(default=2, least=1, most=256),
    },
    rpc=True,
    expendable=frozenset({Role.OBSERVER}),
    check_counts=check_counts,
    check_node=check_node,
)
