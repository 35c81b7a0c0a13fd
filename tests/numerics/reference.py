# pyright: standard
"""`embedding-ddp` in one process, written without the service: what every gang must reproduce."""

from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from rolecall.kit.parameter_server import ShardSpec
from rolecall.workloads.embedding_ddp.build import make_dense, open_dataset, sharded_table
from rolecall.workloads.embedding_ddp.model import pool
from rolecall.workloads.embedding_ddp.params import Params

SPARSE = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "sparse-adam": torch.optim.SparseAdam}
_LOSSES = {"binary": F.binary_cross_entropy_with_logits, "classes": F.cross_entropy, "number": F.mse_loss}
DENSE = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


@dataclass
class Reference:
    """Every step's mean loss over the global batch, and the weights after the last step."""

    losses: list[float] = field(default_factory=list)
    table: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    dense: dict[str, torch.Tensor] = field(default_factory=dict)


def train_alone(params: Params, cache: Path) -> Reference:
    """Plain PyTorch: one table, one optimizer for it, one for the dense layers, the whole global batch at once."""
    dtype = getattr(torch, params.precision)
    dataset = open_dataset(params, cache)
    rows = dataset.table.columns.num_ids
    table = nn.Embedding(rows, params.embedding_dim, sparse=params.optimizer is None, dtype=dtype)
    table.load_state_dict(sharded_table(params, rows, 1).make(ShardSpec(0, 1, rows)).state_dict())
    torch.manual_seed(params.seed)
    dense = make_dense(params, dataset.dense_inputs, dataset.classes).to(dtype)
    optimizers = make_optimizers(params, table, dense)
    reference = Reference()
    steps = params.max_steps or 0
    for epoch in range(params.epochs):
        versions = list[torch.Tensor]()
        for batch in dataset.train_batches(epoch, 0, 0, 1):
            if len(reference.losses) == steps:
                break
            versions = [*versions, table.weight.detach().clone()][-1 - params.staleness :]
            logits = dense(pool(stale_rows(table, versions[0], batch.ids), batch), batch.numeric)
            loss = _LOSSES[params.data.label.target](logits, batch.labels)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            reference.losses.append(loss.item())
    reference.table = table.weight.detach()
    reference.dense = {name: value.detach() for name, value in dense.state_dict().items()}
    return reference


def stale_rows(table: nn.Embedding, version: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """The rows of an earlier version of the table, whose gradients are those of the table."""
    rows = table(ids)
    return rows + (F.embedding(ids, version) - rows).detach()


def make_optimizers(params: Params, table: nn.Embedding, dense: nn.Module) -> list[torch.optim.Optimizer]:
    """One of each kind of weights, or with `params.optimizer` one of all weights."""
    if params.optimizer is not None:
        arguments = params.optimizer.model_dump(exclude={"name"})
        return [DENSE[params.optimizer.name]([*table.parameters(), *dense.parameters()], **arguments)]
    arguments, local = (one.model_dump(exclude={"name"}) for one in (params.sparse_optimizer, params.dense_optimizer))
    if "initial_accumulator" in arguments:
        arguments["initial_accumulator_value"] = arguments.pop("initial_accumulator")
    return [
        SPARSE[params.sparse_optimizer.name](table.parameters(), **arguments),
        DENSE[params.dense_optimizer.name](dense.parameters(), **local),
    ]
