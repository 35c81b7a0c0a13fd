# pyright: standard
"""`embedding-ddp`: a table on parameter servers, compared with one process with the whole table."""

from pathlib import Path
from typing import Any

from benchmarks import ddp_table
from benchmarks.contest import Contender, Contest, Floor
from benchmarks.ddp_table.trainer import make_step, make_whole
from benchmarks.goals import MemoryGoal, RateGoal
from benchmarks.machine import CORES
from benchmarks.processes import SKIPPED, Step, alone, gang
from rolecall.spec.role import Role
from rolecall.workloads.embedding_ddp.build import open_dataset
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
    model = make_whole(own, dataset)
    train, batches = make_step(model, model), dataset.train_batches(0, 0, 0, 1)
    return lambda: train(next(batches))


def _gang(servers: int, **more: Any) -> Any:
    roles = {Role.MASTER: 1, Role.PARAMETER_SERVER: servers, Role.TRAINER: 2}
    # The servers together update rows with all cores, because the trainers wait for them.
    threads = {Role.PARAMETER_SERVER: max(1, CORES // servers)}
    return gang("embedding-ddp", params(**more), roles, reporter="trainer-0", threads=threads)


_VECTORS, _DISTINCT = BATCH * COLUMNS, 40_500
"""The looked-up vectors of a step, and how many of them differ."""
_STORED_BYTES = 2 * ROWS * 64 * 4
"""The table, and Adagrad's sums of squares."""
_DENSE = (13 + COLUMNS * 64) * 128 + 128 * 64 + 64


def _ddp() -> Any:
    return gang(ddp_table.WORKLOAD, params(), {Role.TRAINER: 2}, reporter="trainer-0")


CONTESTS = (
    Contest(
        title="embedding-ddp",
        unit="samples",
        work=f"{ROWS:,} embeddings of 64 numbers, {BATCH:,} rows of {COLUMNS} ids per step, Adagrad, two trainers",
        contenders=[
            Contender("one process", alone(one_process, STEPS, units_per_step=BATCH), is_limit=True),
            Contender("DDP alone", _ddp()),
            Contender("tutorial protocol", _gang(1, protocol="tutorial")),
            Contender("sync, 1 server", _gang(1)),
            Contender("async, 1 server", _gang(1, protocol="async")),
            Contender("sync, staleness 1", _gang(1, staleness=1)),
            Contender("async, staleness 1", _gang(1, protocol="async", staleness=1)),
            Contender("sync, 2 servers", _gang(2)),
        ],
        goals=[
            RateGoal("sync, 1 server", 0.9, "one process"),
            RateGoal("async, 1 server", 1.0, "one process"),
            RateGoal("async, staleness 1", 1.0, "one process"),
            RateGoal("sync, 2 servers", 1.0, "sync, 1 server"),
            *(
                MemoryGoal(
                    name, Role.PARAMETER_SERVER, _STORED_BYTES / servers, "its rows and their optimizer state", 0.2
                )
                for name, servers in (("sync, 1 server", 1), ("async, 1 server", 1), ("sync, 2 servers", 2))
            ),
        ],
        floor=Floor(
            BATCH,
            6 * BATCH * _DENSE,
            64 * 4 * (4 * _VECTORS + 5 * _DISTINCT),
            "the dense part's matrix products; vectors and their gradients written and read once, Adagrad's rows read "
            "and written",
        ),
    ),
)
