"""A parameter server holds one shard of the embedding table and answers calls until the gang parts."""

from rolecall.runtime.context import WorkerContext
from rolecall.spec.errors import Stopped


def run(context: WorkerContext) -> None:
    """Nothing to do in the main thread: the master makes the shard here by RPC, the trainers call it.

    Leaving the gang waits for all other workers, so this returns at once.
    """
    if context.stop_requested():
        raise Stopped("asked to stop before the training began")
