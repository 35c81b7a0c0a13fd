"""A parameter server holds shards of the vocabulary and answers calls until the gang parts."""

from rolecall.runtime.context import WorkerContext
from rolecall.spec.errors import Stopped


def run(context: WorkerContext) -> None:
    """Nothing to do in the main thread: the first trainer makes the shards here by RPC, all trainers call them.

    Leaving the gang waits for all other workers, so this returns at once.
    """
    if context.stop_requested():
        raise Stopped("asked to stop before the training began")
