# pyright: standard
"""The driver, a worker of the role `master`, creates the table on the servers and starts the loop on the trainers."""

import torch

from rolecall.kit import Role, Stopped, counted
from rolecall.kit.worker import WorkerContext, call, worker_name
from rolecall.workloads.embedding_ddp import trainer
from rolecall.workloads.embedding_ddp.params import Params
from rolecall.workloads.embedding_ddp.remote import make_table


def run(context: WorkerContext[Params]) -> None:
    """Drive one attempt, from creating the table to the job's result."""
    trainers = [worker_name(Role.TRAINER, rank) for rank in range(context.count(Role.TRAINER))]
    servers = context.count(Role.PARAMETER_SERVER)
    rows = call(trainers[0], trainer.table_rows, timeout=0).wait()
    context.report.event(f"the table has {counted(rows, 'row')} on {counted(servers, 'parameter server')}")
    table = make_table(context, rows)
    # No timeout: the call lasts for the whole training, and fails if a trainer dies and its connection closes.
    trainings = [call(name, trainer.train, table, timeout=0) for name in trainers]
    with context.timeline.span("trainers", "wait"):
        result = torch.futures.wait_all(trainings)[0]
    if result is None:
        raise Stopped("the trainers stopped between two steps, as requested")
    context.report.result(result)
