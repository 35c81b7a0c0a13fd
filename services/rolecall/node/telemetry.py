"""The node's own HTTP server: `/metrics` for Prometheus, which scrapes nodes and never workers, and `/healthz`."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass

import psutil
import uvicorn
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rolecall.node.daemon import Daemon
from rolecall.node.gpu_readings import GpuReading, GpuReadings
from rolecall.node.health import NodeHealth
from rolecall.node.scrape_access import ScrapeAccess
from rolecall.node.worker_process import WorkerProcess
from rolecall.spec.metric import WORKER_METRICS
from rolecall.spec.node import Machine

_LABELS = ("job", "attempt", "role", "rank")
_PROGRESS = {
    "step": "The newest step that the worker reported.",
    "loss": "The newest loss that the worker reported.",
    "samples_per_second": "The newest throughput that the worker reported.",
}


@dataclass(frozen=True, slots=True, eq=False)
class NodeSnapshot:
    """The values of the node's own metrics, without those of the driver, at one point in time."""

    machine: Machine
    slots: int
    workers: Sequence[WorkerProcess]
    starts: int
    restarts: int
    exits: Counter[str]
    """Ended workers by how they ended."""
    fork_server_restarts: int
    heartbeat_failures: int
    certificate_end: float | None

    def collect(self) -> Iterator[Metric]:
        """The metrics, as a collector of prometheus_client."""
        yield from _node(self)
        yield from _progress(self.workers)
        yield from _processes(self.workers)
        yield from _assigned(self.workers, self.machine)
        yield from _measured(self.workers)


class NodeCollector(Collector):
    """Reads the daemon's state at every scrape, so that a worker's series end with the worker."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def collect(self) -> Iterator[Metric]:
        pool, link = self._daemon.pool, self._daemon.link
        snapshot = NodeSnapshot(
            machine=link.spec.machine,
            slots=link.spec.slots,
            workers=list(pool.workers.values()),
            starts=pool.counts["starts"],
            restarts=pool.counts["restarts"],
            exits=pool.exits,
            fork_server_restarts=pool.forks.restarts,
            heartbeat_failures=link.heartbeat_failures,
            certificate_end=link.certificate_end,
        )
        return snapshot.collect()


class GpuCollector(Collector):
    """Asks the driver of the node's GPUs, which can take seconds."""

    def __init__(self, readings: GpuReadings) -> None:
        self._readings = readings

    def collect(self) -> Iterator[Metric]:
        yield from gpu_families(self._readings.read())


def gpu_families(readings: Iterable[GpuReading]) -> Iterator[Metric]:
    use = GaugeMetricFamily("rolecall_gpu_use_ratio", "Share of time in which the GPU computed.", labels=("gpu",))
    used = GaugeMetricFamily("rolecall_gpu_memory_used_bytes", "Memory of the GPU in use.", labels=("gpu",))
    total = GaugeMetricFamily("rolecall_gpu_memory_total_bytes", "Memory of the GPU.", labels=("gpu",))
    for one in readings:
        if one.use is not None:
            use.add_metric((one.uuid,), one.use)
        used.add_metric((one.uuid,), one.used_bytes)
        total.add_metric((one.uuid,), one.total_bytes)
    yield from (use, used, total)


def _node(found: NodeSnapshot) -> Iterator[Metric]:
    yield GaugeMetricFamily("rolecall_node_cores", "Cores that this container may use.", found.machine.cores)
    yield GaugeMetricFamily("rolecall_node_slots", "Workers that this node takes at once.", found.slots)
    states = Counter(worker.report.state.value for worker in found.workers)
    yield _by_label(GaugeMetricFamily("rolecall_node_workers", "Workers by state.", labels=("state",)), states)
    counts = {
        "worker_starts": (found.starts, "Workers started."),
        "worker_restarts": (found.restarts, "Workers started for a second or later attempt of a job."),
        "fork_server_restarts": (found.fork_server_restarts, "Fork servers started after one died."),
        "heartbeat_failures": (found.heartbeat_failures, "Calls that the master did not answer."),
    }
    for name, (value, meaning) in counts.items():
        yield CounterMetricFamily(f"rolecall_node_{name}", meaning, value)
    about = "When the master's certificate expires; without TLS, there is no value."
    expiry = GaugeMetricFamily("rolecall_node_certificate_expiry_timestamp_seconds", about)
    if found.certificate_end is not None:
        expiry.add_metric((), found.certificate_end)
    yield expiry
    exits = CounterMetricFamily("rolecall_node_worker_exits", "Workers that ended, by how.", labels=("reason",))
    yield _by_label(exits, found.exits)


def _by_label(family: GaugeMetricFamily | CounterMetricFamily, values: Counter[str]) -> Metric:
    for label, value in values.items():
        family.add_metric((label,), value)
    return family


def _progress(workers: Sequence[WorkerProcess]) -> Iterator[Metric]:
    for name, meaning in _PROGRESS.items():
        family = GaugeMetricFamily(f"rolecall_worker_{name}", meaning, labels=_LABELS)
        for worker in workers:
            if name in worker.newest:
                family.add_metric(_labels(worker), worker.newest[name])
        yield family


def _processes(workers: Sequence[WorkerProcess]) -> Iterator[Metric]:
    cpu = CounterMetricFamily("rolecall_worker_cpu_seconds", "CPU time that the worker used.", labels=_LABELS)
    memory = GaugeMetricFamily("rolecall_worker_resident_memory_bytes", "Memory that the worker uses.", labels=_LABELS)
    for worker in workers:
        if worker.pid is None:
            continue
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(worker.pid)
            times = process.cpu_times()
            cpu.add_metric(_labels(worker), times.user + times.system)
            memory.add_metric(_labels(worker), process.memory_info().rss)
    yield from (cpu, memory)


def _assigned(workers: Sequence[WorkerProcess], machine: Machine) -> Iterator[Metric]:
    """The GPUs of running workers, by which the series of the GPUs can be joined to jobs and ranks."""
    whole = {gpu.uuid: gpu.whole for gpu in machine.gpus}
    about = "1 for the GPU that the worker uses; for a slice, the GPU that is divided."
    family = GaugeMetricFamily("rolecall_worker_gpu_info", about, labels=(*_LABELS, "gpu"))
    for worker in workers:
        gpu = worker.launch.worker.gpu
        if worker.pid is not None and gpu is not None:
            family.add_metric((*_labels(worker), whole.get(gpu, gpu)), 1.0)
    yield family


def _measured(workers: Sequence[WorkerProcess]) -> Iterator[Metric]:
    """The values that running workers record about themselves."""
    found = [(_labels(worker), worker.measurements()) for worker in workers if worker.pid is not None]
    for one in WORKER_METRICS:
        family = (CounterMetricFamily if one.counts else GaugeMetricFamily)(
            f"rolecall_worker_{one.name}", one.help, labels=(*_LABELS, one.label) if one.label else _LABELS
        )
        for labels, values in found:
            for label, value in values.get(one.name, {}).items():
                family.add_metric((*labels, label) if one.label else labels, value)
        yield family


def _labels(worker: WorkerProcess) -> tuple[str, str, str, str]:
    launch = worker.launch
    return launch.job, str(launch.attempt), launch.worker.role.value, str(launch.worker.rank)


def app(health: NodeHealth, access: ScrapeAccess) -> Starlette:
    """The application; `/metrics` needs a token that `access` accepts, `/healthz` needs none.

    It runs before the node has found its master, so that probes show a live node and the cause for which it waits.
    Collectors can be added later: to `app.state.registry`, if they read what the event loop changes; to
    `app.state.slow`, which is collected in a thread.
    """
    registry, slow = CollectorRegistry(), CollectorRegistry()

    async def metrics(request: Request) -> Response:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not access.accepts(token.strip()):
            hint = (
                "send a token with the scope metrics: Authorization: Bearer $ROLECALL_METRICS_TOKEN; "
                "a node learns of a new token after about 10 seconds\n"
            )
            return Response(hint, 401, {"WWW-Authenticate": "Bearer"})
        answers = await asyncio.to_thread(generate_latest, slow)
        return Response(generate_latest(registry) + answers, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthz(_: Request) -> Response:
        status = {"status": "waiting", "waiting_for": health.waiting_for} if health.waiting_for else {"status": "ok"}
        return JSONResponse(status | {"node": health.name, "role": health.role, "registered": health.has_registered})

    served = Starlette(routes=[Route("/metrics", metrics), Route("/healthz", healthz)])
    served.state.registry, served.state.slow = registry, slow
    return served


class TelemetryServer(uvicorn.Server):
    """A server that leaves signals to the daemon, which drains."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield
