# pyright: standard
"""A trainer looks up embeddings on the parameter servers and trains the dense layers in DDP."""

from torch.distributed import rpc
from torch.futures import Future

from rolecall.kit import Role, Stopped, counted
from rolecall.kit.same_input import require_same_in_group
from rolecall.kit.worker import Mailbox, WorkerContext
from rolecall.workloads.embedding_ddp.build import open_dataset
from rolecall.workloads.embedding_ddp.params import Params
from rolecall.workloads.embedding_ddp.remote import Table
from rolecall.workloads.embedding_ddp.training import Training

_table_size_requests: Mailbox[None, int] = Mailbox()
_train_requests: Mailbox[Table, dict[str, float] | None] = Mailbox()


def run(context: WorkerContext[Params]) -> None:
    """Read the input, report the table size to the driver (first trainer), then answer its training request."""
    dataset = open_dataset(context.params, context.cache)
    encoded = dataset.table
    if encoded.bad_rows and context.role_rank == 0:
        bad = counted(encoded.bad_rows, "row")
        are = "is" if encoded.bad_rows == 1 else "are"
        context.report.event(f"{bad} can't be parsed and {are} skipped; the log lists the first ones")
    require_same_in_group(encoded.fingerprint, Role.TRAINER, "data")
    if context.role_rank == 0:
        _table_size_requests.answer_one(lambda _: encoded.columns.num_ids)
    if _train_requests.answer_one(lambda table: Training(context, dataset, table).run()) is None:
        raise Stopped("stopped between two steps, as requested")


@rpc.functions.async_execution
def table_rows() -> Future[int]:
    """Called by the driver on the first trainer: the rows of the embedding table, after all have read the input."""
    return _table_size_requests.post(None)


@rpc.functions.async_execution
def train(table: Table) -> Future[dict[str, float] | None]:
    """Called by the driver: train with this table. The result, or None after a stop request."""
    return _train_requests.post(table)
