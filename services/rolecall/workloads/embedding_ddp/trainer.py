"""A trainer reads its share of the rows, looks vectors up on the parameter servers and trains the dense layers in
DDP.
"""

from torch.distributed import rpc
from torch.futures import Future

from rolecall.kit.parameter_server import Shards
from rolecall.kit.precision import weight_dtype
from rolecall.kit.same_input import require_same_in_group
from rolecall.runtime.context import WorkerContext
from rolecall.runtime.remote import Mailbox
from rolecall.spec.errors import Stopped
from rolecall.spec.role import Role
from rolecall.workloads.embedding_ddp.batches import open_dataset
from rolecall.workloads.embedding_ddp.params import Params
from rolecall.workloads.embedding_ddp.training import Training

_questions: Mailbox[None, int] = Mailbox()
_orders: Mailbox[Shards, dict[str, float] | None] = Mailbox()


def run(context: WorkerContext[Params]) -> None:
    """Read the input, tell the master how large the table is (the first trainer), then train as it says."""
    dataset = open_dataset(context.params, context.cache, dtype=weight_dtype(context.params.precision))
    if dataset.bad_rows and context.role_rank == 0:
        context.report.event(f"{dataset.bad_rows} rows can't be parsed and are left out; the log has the first")
    require_same_in_group(dataset.fingerprint, Role.TRAINER, "data")
    if context.role_rank == 0:
        _questions.serve(lambda _: dataset.num_ids)
    if _orders.serve(lambda shards: Training(context, dataset, shards).run()) is None:
        raise Stopped("left between two steps, as asked")


@rpc.functions.async_execution
def table_rows() -> Future[int]:
    """Called by the master of the first trainer: how many embedding rows the input needs, once all have read it."""
    return _questions.post(None)


@rpc.functions.async_execution
def train(shards: Shards) -> Future[dict[str, float] | None]:
    """Called by the master: train on this table; the result, or none if the training was stopped."""
    return _orders.post(shards)
