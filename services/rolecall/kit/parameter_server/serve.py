"""The part of a parameter server in a job: it holds shards and answers calls."""

from typing import Any

from rolecall.runtime.context import WorkerContext
from rolecall.spec.errors import Stopped


def run(context: WorkerContext[Any]) -> None:
    """Nothing to do in the main thread: others make the shards here by RPC and call them.

    Returns at once: to leave the gang is to wait for all other workers.
    """
    if context.stop_requested():
        raise Stopped("asked to stop before the training began")
