"""`embedding-ddp`: a table on parameter servers, compared with one process with the whole table."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from benchmarks.contest import Contender, Contest, Goal
from benchmarks.processes import CORES, SKIPPED, Step, alone, gang
from rolecall.kit.parameter_server import ShardSpec
from rolecall.spec.role import Role
from rolecall.workloads.embedding_ddp.build import make_dense, open_dataset, sharded_table
from rolecall.workloads.embedding_ddp.model import pool
from rolecall.workloads.embedding_ddp.params import Params

BATCH, COLUMNS, ROWS = 4096, 26, 1_000_000
STEPS = SKIPPED + 40


def params(**more: Any) -> dict[str, Any]:
    """A million embeddings of 64 numbers, 26 ids per row with Zipf's distribution, and Adagrad."""
    rows = {"rows": BATCH * STEPS, "columns": COLUMNS, "ids": ROWS // COLUMNS - 2, "skew": 1.0, "signal": 0.8}
    return {
        "data": {"synthetic": {**rows, "numbers": 13}, "validation": 0.0},
        "embedding_dim": 64,
        "hidden": [128, 64],
        "batch_size": BATCH,
        "epochs": 1,
        "checkpoint_every_s": None,
        "sparse_optimizer": {"name": "adagrad"},
        **more,
    }


def one_process(folder: Path) -> Step:
    """Plain PyTorch: the table and its optimizer in the process that trains."""
    own = Params.model_validate(params())
    dataset = open_dataset(own, folder / "cache")
    rows = dataset.table.columns.num_ids
    table = nn.Embedding(rows, own.embedding_dim, sparse=True)
    table.load_state_dict(sharded_table(own, rows, 1).make(ShardSpec(0, 1, rows)).state_dict())
    dense = make_dense(own, dataset.dense_inputs, dataset.classes)
    optimizers = (torch.optim.Adagrad(table.parameters(), lr=0.01), torch.optim.Adam(dense.parameters(), fused=True))
    batches = dataset.train_batches(0, 0, 0, 1)

    def step() -> None:
        batch = next(batches)
        loss = F.binary_cross_entropy_with_logits(dense(pool(table(batch.ids), batch), batch.numeric), batch.labels)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()

    return step


def _gang(servers: int, **more: Any) -> Any:
    roles = {Role.MASTER: 1, Role.PARAMETER_SERVER: servers, Role.TRAINER: 2}
    # The servers update rows with all cores, because the trainers wait for them.
    threads = {Role.PARAMETER_SERVER: CORES}
    return gang("embedding-ddp", params(**more), roles, reporter="trainer-0", threads=threads)


CONTESTS = (
    Contest(
        title="embedding-ddp",
        unit="samples",
        work=f"{ROWS:,} embeddings of 64 numbers, {BATCH:,} rows of {COLUMNS} ids per step, Adagrad, two trainers",
        contenders=[
            Contender("one process", alone(one_process, STEPS, units_per_step=BATCH), is_limit=True),
            Contender("tutorial protocol", _gang(1, protocol="tutorial")),
            Contender("sync, 1 server", _gang(1)),
            Contender("async, 1 server", _gang(1, protocol="async")),
            Contender("sync, staleness 1", _gang(1, staleness=1)),
            Contender("async, staleness 1", _gang(1, protocol="async", staleness=1)),
            Contender("sync, 2 servers", _gang(2)),
        ],
        goals=[
            Goal("sync, 1 server", 0.9, "one process"),
            Goal("async, 1 server", 1.0, "one process"),
            Goal("async, staleness 1", 1.0, "one process"),
            Goal("sync, 2 servers", 1.0, "sync, 1 server"),
        ],
    ),
)
