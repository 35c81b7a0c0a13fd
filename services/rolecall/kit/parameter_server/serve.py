"""The `run` of a parameter server, which holds shards and serves RPC calls."""

from typing import Any

from rolecall.runtime.context import WorkerContext
from rolecall.spec.errors import Stopped


def run(context: WorkerContext[Any]) -> None:
    """Returns at once, because RPC threads create the shards and serve calls; raises `Stopped` after a stop request.

    Leaving the gang waits for all other workers, so the process serves until they are done.
    """
    if context.stop_requested():
        raise Stopped("stopped before the training started, as requested")
