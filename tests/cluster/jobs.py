"""Bodies of `POST /jobs` for the cluster's tests, and what they look at in documents."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.conftest import Cluster
from tests.containers import until
from tests.rows import COLUMNS


def short_job(rows: Path, *, trainers: int = 2, **params: Any) -> dict[str, Any]:
    """About a hundred steps: less than a second of training."""
    return {
        "workload": "embedding-ddp",
        "roles": {"parameter-server": 1, "trainer": trainers},
        "params": {
            "data": {"train": str(rows), **COLUMNS},
            "embedding_dim": 8,
            "hidden": [16],
            "batch_size": 64,
            "epochs": 2,
            "sparse_optimizer": {"name": "adagrad", "lr": 0.05},
            "dense_optimizer": {"name": "adam", "lr": 0.002},
            **params,
        },
    }


def long_job(rows: Path, *, trainers: int = 2, max_steps: int = 1_000_000, **params: Any) -> dict[str, Any]:
    """Runs until it is stopped, or to `max_steps`."""
    return short_job(rows, trainers=trainers, epochs=100_000, max_steps=max_steps, **params)


def past_step(step: int) -> Callable[[dict[str, Any]], bool]:
    """True for a job that runs and has done more than `step` steps."""
    return lambda document: document["state"] == "running" and document["progress"]["step"] > step


def each_epoch(cluster: Cluster, job: str, metric: str) -> dict[int, float]:
    """The values of a metric in a job's series, by epoch; the lowest rank reported them."""
    parameters = {"lowest_rank": True}
    (series,) = cluster.client.get(f"/jobs/{job}/metrics", params=parameters).raise_for_status().json()["series"]
    return {point["epoch"]: point[metric] for point in series["points"] if metric in point}


def spans(cluster: Cluster, job: str, worker: str) -> set[str]:
    """The names of the spans in the last steps of a worker of an ended job."""

    def sent() -> set[str]:
        shown = cluster.client.get(f"/jobs/{job}/timeline").raise_for_status().json()["workers"]
        own = (one["spans"] for one in shown if f"{one['role']}-{one['role_rank']}" == worker)
        return {span[0] for found in own for span in found}

    return until(sent, 10)  # Its node sends them after the worker's end.


def workers(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The current attempt's workers by name, for example `trainer-0`."""
    return {f"{worker['role']}-{worker['role_rank']}": worker for worker in document["attempts"][-1]["workers"]}


def has_shared_memory(job: str, worker: dict[str, Any]) -> bool:
    """True if a running worker has tensors of a job's messages in shared memory."""
    return f"/dev/shm/rolecall-{job}-" in Path(f"/proc/{worker['pid']}/maps").read_text()
