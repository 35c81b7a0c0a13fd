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
    table = nn.Embedding(dataset.table.columns.num_ids, params.embedding_dim, sparse=True, dtype=dtype)
    whole = sharded_table(params, dataset.table.columns.num_ids, 1).make(ShardSpec(0, 1, dataset.table.columns.num_ids))
    table.load_state_dict(whole.state_dict())
    torch.manual_seed(params.seed)
    dense = make_dense(params, dataset.dense_inputs).to(dtype)
    arguments = [chosen.model_dump(exclude={"name"}) for chosen in (params.sparse_optimizer, params.dense_optimizer)]
    if "initial_accumulator" in arguments[0]:
        arguments[0]["initial_accumulator_value"] = arguments[0].pop("initial_accumulator")
    optimizers = [
        SPARSE[params.sparse_optimizer.name](table.parameters(), **arguments[0]),
        DENSE[params.dense_optimizer.name](dense.parameters(), **arguments[1]),
    ]
    reference = Reference()
    steps = params.max_steps or 0
    for epoch in range(params.epochs):
        for batch in dataset.train_batches(epoch, 0, 0, 1):
            if len(reference.losses) == steps:
                break
            logits = dense(pool(table(batch.ids), batch), batch.numeric)
            loss = F.binary_cross_entropy_with_logits(logits, batch.labels.to(dtype))
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            reference.losses.append(loss.item())
    reference.table = table.weight.detach()
    reference.dense = {name: value.detach() for name, value in dense.state_dict().items()}
    return reference
