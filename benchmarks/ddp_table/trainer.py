# pyright: standard
"""A trainer: all weights in DDP, and two optimizers."""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rolecall.kit import Role
from rolecall.kit.parameter_server import ShardSpec
from rolecall.kit.worker import WorkerContext
from rolecall.workloads.embedding_ddp.build import Batch, Dataset, make_dense, open_dataset, sharded_table
from rolecall.workloads.embedding_ddp.model import pool
from rolecall.workloads.embedding_ddp.params import Params


class Whole(nn.Module):
    """Table and dense layers."""

    def __init__(self, table: nn.Embedding, dense: nn.Module) -> None:
        super().__init__()
        self.table, self.dense = table, dense

    def forward(self, batch: Batch) -> Tensor:
        return self.dense(pool(self.table(batch.ids), batch), batch.numeric)


def make_whole(params: Params, dataset: Dataset) -> Whole:
    """The model with the initial weights of a job."""
    rows = dataset.table.columns.num_ids
    table = nn.Embedding(rows, params.embedding_dim, sparse=True)
    table.load_state_dict(sharded_table(params, rows, 1).make(ShardSpec(0, 1, rows)).state_dict())
    torch.manual_seed(params.seed)
    return Whole(table, make_dense(params, dataset.dense_inputs, dataset.classes))


def make_step(model: Whole, replica: nn.Module) -> Callable[[Batch], Tensor]:
    """A function that does one optimizer step and returns the loss. `replica` is the model, also in DDP."""
    optimizers = (
        torch.optim.Adagrad(model.table.parameters(), lr=0.01),
        torch.optim.Adam(model.dense.parameters(), fused=True),
    )

    def step(batch: Batch) -> Tensor:
        loss = F.binary_cross_entropy_with_logits(replica(batch), batch.labels)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss.detach()

    return step


def run(context: WorkerContext[Params]) -> None:
    params = context.params
    dataset = open_dataset(params, context.cache)
    model = make_whole(params, dataset)
    train = make_step(model, DistributedDataParallel(model))
    loss = torch.tensor(torch.nan)
    batches = dataset.train_batches(0, 0, context.role_rank, context.count(Role.TRAINER))
    for step, batch in enumerate(context.timeline.steps(batches, 1), 1):
        loss = train(batch)
        context.report(step, loss=loss, samples=params.batch_size)
    context.report.result({"loss": loss.item()})
