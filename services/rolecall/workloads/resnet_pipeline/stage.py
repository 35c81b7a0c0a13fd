"""A stage waits for the master's orders and carries them out in its main thread."""

from collections.abc import Callable
from typing import Any

from torch.distributed import rpc
from torch.futures import Future

from rolecall.runtime.context import WorkerContext
from rolecall.runtime.remote import Mailbox
from rolecall.spec.errors import Stopped
from rolecall.workloads.resnet_pipeline.params import Params
from rolecall.workloads.resnet_pipeline.pipeline import PipelineStage

_orders: Mailbox[tuple[Callable[..., Any], tuple[Any, ...]], Any] = Mailbox()


def run(context: WorkerContext[Params]) -> None:
    """Serve until the master dismisses this stage."""
    stage = PipelineStage(context)
    while stage.dismissed is None:
        _orders.serve(lambda order: order[0](stage, *order[1]))
    if stage.dismissed == "stopped":
        raise Stopped("left between two steps, as asked")


@rpc.functions.async_execution
def obey(method: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Called by the master: what `method` of `PipelineStage` answers here."""
    return _orders.post((method, arguments))
