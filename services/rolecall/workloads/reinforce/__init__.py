"""`reinforce`: an agent learns from rollouts that observers collect in their environments.

After the PyTorch tutorial "Getting Started with Distributed RPC Framework", where observers request each action from
the agent and report each reward to it. Environments are Gymnasium's, algorithms REINFORCE with a baseline and PPO.

`params`: the parameters. `check`: checks before the gang starts. `model`: the policy, shared with exports. `build`: the
policy with its initial weights and its optimizer, and all seeds. `observer`: runs environments. `remote`: the agent's
calls of the observers, and the tutorial's protocol. `training`: the agent's loop. `export`: the exported archive and a
movie. This file, `params` and `check` import neither torch nor Gymnasium.
"""

from rolecall.kit import Metric, Role, RoleCount, Split, Workload
from rolecall.kit.declarations import RESULT
from rolecall.workloads.reinforce.check import check_counts, check_node
from rolecall.workloads.reinforce.params import Params

__all__ = ["WORKLOAD", "Params"]

_EVALUATION = (Split.EVALUATION,)

WORKLOAD = Workload(
    name="reinforce",
    summary="Reinforcement learning: an agent learns (PPO, REINFORCE) from observers that play Gymnasium environments",
    package=__name__,
    params=Params,
    roles={
        Role.TRAINER: RoleCount(default=1, least=1, most=1),
        Role.OBSERVER: RoleCount(default=2, least=1, most=256),
    },
    metrics=(
        # They have no direction, because they depend on rollouts that change with the policy.
        Metric("loss", "Mean loss of an update."),
        Metric("policy_loss", "Mean loss of the policy."),
        Metric("value_loss", "Mean loss of the value function."),
        Metric("entropy", "Mean entropy of the policy.", "nats"),
        Metric("kl", "Estimated divergence of the policy from the one that collected the rollouts.", "nats"),
        Metric("env_steps", "Environment steps trained on.", "steps"),
        Metric("observers", "Observers that take part."),
        Metric("episode_return", "Mean undiscounted return of the episodes that ended.", direction="higher"),
        Metric("episode_length", "Mean length of these episodes.", "steps"),
        Metric("observer_return_min", "The lowest mean return of an observer.", direction="higher"),
        Metric("observer_{index}_return", "Mean return of one observer.", direction="higher"),
        Metric("running_return", "Running average of `observer_return_min`.", direction="higher"),
        Metric("return", "Mean return of an evaluation.", direction="higher", splits=_EVALUATION),
        Metric("return_std", "Standard deviation of its returns.", splits=_EVALUATION),
        Metric("return_min", "Its lowest return.", direction="higher", splits=_EVALUATION),
        Metric("return_max", "Its highest return.", direction="higher", splits=_EVALUATION),
        Metric("length", "Mean length of its episodes.", "steps", splits=_EVALUATION),
        Metric("episodes", "Episodes that ended in training."),
        Metric("updates", "Updates of the policy."),
        *RESULT,
    ),
    rpc=True,
    expendable=frozenset({Role.OBSERVER}),
    check_counts=check_counts,
    check_node=check_node,
)
