"""A stage executes the master's calls in its main thread."""

from collections.abc import Callable
from typing import Any

from torch.distributed import rpc
from torch.futures import Future

from rolecall.runtime.context import WorkerContext
from rolecall.runtime.remote import Mailbox
from rolecall.spec.errors import Stopped
from rolecall.workloads.resnet_pipeline.params import Params
from rolecall.workloads.resnet_pipeline.pipeline import PipelineStage

_requests: Mailbox[tuple[Callable[..., Any], tuple[Any, ...]], Any] = Mailbox()


def run(context: WorkerContext[Params]) -> None:
    """Serve calls until the master shuts this stage down."""
    stage = PipelineStage(context)
    while stage.shutdown_reason is None:
        _requests.serve(lambda request: request[0](stage, *request[1]))
    if stage.shutdown_reason == "stopped":
        raise Stopped("stopped between two steps, as requested")


@rpc.functions.async_execution
def execute(method: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Called by the master: the result of a method of this process's `PipelineStage`."""
    return _requests.post((method, arguments))
