"""The trainer is the agent: it trains the policy on the observers' rollouts."""

from rolecall.kit.worker import WorkerContext
from rolecall.workloads.reinforce.params import Params
from rolecall.workloads.reinforce.training import Training


def run(context: WorkerContext[Params]) -> None:
    """Train to the end or to a stop request, then shut the observers down."""
    Training(context).play()
