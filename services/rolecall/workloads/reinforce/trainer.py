"""The trainer is the agent: it learns a policy from what its observers live through."""

from rolecall.runtime.context import WorkerContext
from rolecall.workloads.reinforce.params import Params
from rolecall.workloads.reinforce.training import Training


def run(context: WorkerContext[Params]) -> None:
    """Learn to the end (or until asked to leave), and let the observers leave."""
    Training(context).run_and_report()
