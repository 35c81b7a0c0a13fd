"""`reinforce`: an agent learns from rollouts that observers collect in their environments.

After the PyTorch tutorial "Getting Started with Distributed RPC Framework", where observers request each action from
the agent and report each reward to it. Environments are Gymnasium's, algorithms REINFORCE with a baseline and PPO.

`params`: the parameters. `check`: checks before the gang starts. `model`: the policy, shared with exports. `build`: its
initial weights, and all seeds. `observer`: runs environments. `remote`: the agent's calls of the observers.
`inference`: actions for observers that request them. `tutorial`: the tutorial's protocol. `learner`: updates the
policy by `algorithms`, `backward` and `flat`. `scores`: metrics of episodes. `training`: the agent's loop. `export`:
the exported archive and a movie. This file, `params` and `check` import neither torch nor Gymnasium.
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
