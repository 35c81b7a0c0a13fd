"""Generates docs/metrics.md from the declarations: `python -m monitoring.reference`."""

from collections.abc import Iterator
from pathlib import Path

from monitoring import exported
from monitoring.boards import BUILT_IN
from monitoring.exported import Exported
from rolecall.master.store.jobs import MAX_READ_CHARS
from rolecall.spec.metric import WORKER_METRICS, Metric, WorkerMetric
from rolecall.workloads import catalogue

PATH = Path(__file__).parents[1] / "docs/metrics.md"
_HEAD = """# Metrics

`python -m monitoring.reference` generates this page from the code. Prometheus scrapes the master and every node.
Histograms have the series `_bucket`, `_sum` and `_count`, summaries `_sum` and `_count`.
"""
_MASTER = """
## Master

The master exports these metrics about itself, the queue and the nodes.
"""
_JOBS = f"""
## Jobs

The master exports these metrics of jobs that hold slots, and some until one hour after the job's end. They
omit the values of a stored progress or result that has more than {MAX_READ_CHARS:,} characters as JSON, and the goodput
of a job whose progress is omitted. `GET /jobs/{{id}}` has all values.
"""
_NODES = """
## Nodes

Each node exports these metrics about itself, its GPUs and its workers. `gpu` is the UUID of a GPU. The following query
joins the metrics of GPUs to jobs and ranks, although several nodes of a machine can export the same GPU:
`max by (gpu) (rolecall_gpu_use_ratio) * on (gpu) group_right () rolecall_worker_gpu_info`.

No metric of GPUs has had a value from a real GPU so far; [gpu.md](gpu.md#test-coverage) describes the tests.
"""
_COLLECTED = """
| name | type | labels | meaning |
|---|---|---|---|
"""
_WORKERS = """
## Workers

Each worker measures itself. Its node exports these metrics as `rolecall_worker_<name>` with the labels `job`,
`attempt`, `role` and `rank`.

| name | type | label | meaning |
|---|---|---|---|
"""
_WORKLOADS = """
## Workloads

Each workload declares its metrics. The master exports their newest values as
`rolecall_job_metric{job,workload,metric,split}` and their final values as `rolecall_job_result`, until one hour after
the job's end. A name with `{index}` stands for several metrics. Those are only in the job's series, not in Prometheus.
"""


def page() -> str:
    """The content of docs/metrics.md."""
    measured = {f"rolecall_worker_{one.name}" for one in WORKER_METRICS}
    on_nodes = [one for one in exported.node() if one.name not in measured]
    parts = [
        _HEAD,
        *(_MASTER, _COLLECTED, *map(_collected_row, exported.master())),
        *(_JOBS, _COLLECTED, *map(_collected_row, exported.jobs())),
        *(_NODES, _COLLECTED, *map(_collected_row, on_nodes)),
        *(_WORKERS, *map(_worker_row, WORKER_METRICS)),
        *(_WORKLOADS, *(f"{line}\n" for line in _workloads())),
    ]
    return "".join(parts)


def _collected_row(one: Exported) -> str:
    labels = ", ".join(f"`{label}`" for label in one.labels)
    return f"| `{one.name}` | {one.kind} | {labels} | {one.help} |\n"


def _worker_row(one: WorkerMetric) -> str:
    label = f"`{one.label}`: {', '.join(one.values)}" if one.label else ""
    return f"| `{one.name}` | {'counter' if one.counts else 'gauge'} | {label} | {one.help} |\n"


def _workloads() -> Iterator[str]:
    for name in BUILT_IN:
        yield from ("", f"### `{name}`", "", "| reported as | unit | better | meaning |", "|---|---|---|---|")
        yield from map(_metric_row, catalogue.load(name).metrics)


def _metric_row(one: Metric) -> str:
    names = ", ".join(f"`{name}`" for name in one.reported.values())
    return f"| {names} | {one.unit} | {one.direction or ''} | {one.help} |"


if __name__ == "__main__":
    PATH.write_text(page())
