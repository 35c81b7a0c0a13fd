"""The node's `/metrics`."""

import os
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from tests.node.harness import METRICS_TOKEN, launch
from tests.node.simulated_driver import SimulatedDriver, SimulatedGpu

from rolecall.node.gpu_readings import GpuReadings
from rolecall.node.health import NodeHealth
from rolecall.node.scrape_access import ScrapeAccess
from rolecall.node.telemetry import GpuCollector, NodeSnapshot, app
from rolecall.node.worker_process import WorkerProcess
from rolecall.spec.node import Gpu, Machine
from rolecall.spec.role import Role


class _Where(Collector):
    """Shows whether the main thread collects it, in which the event loop of a test runs."""

    def __init__(self, name: str) -> None:
        self._name = name

    def collect(self) -> Iterator[Metric]:
        in_loop = threading.current_thread() is threading.main_thread()
        yield GaugeMetricFamily(self._name, "1 in the event loop.", float(in_loop))


async def test_a_scrape_reads_the_daemon_in_the_event_loop_and_drivers_in_a_thread() -> None:
    """The event loop changes the daemon's workers, so another thread could see them in the middle of a change."""
    served = app(NodeHealth("n", Role.TRAINER), ScrapeAccess(lambda: [METRICS_TOKEN], now=lambda: datetime.now(UTC)))
    served.state.registry.register(_Where("daemon"))
    served.state.slow.register(_Where("driver"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served), base_url="http://node") as client:
        answer = await client.get("/metrics", headers={"Authorization": f"Bearer {METRICS_TOKEN}"})
    assert {"daemon 1.0", "driver 0.0"} <= set(answer.text.splitlines())


def _worker(folder: Path, rank: int, gpu: str | None, pid: int | None = None) -> WorkerProcess:
    planned = launch("a", "stay", rank)
    planned = planned.model_copy(update={"worker": planned.worker.model_copy(update={"gpu": gpu})})
    worker = WorkerProcess(planned, folder, 60.0, 1000, lambda: None)
    worker.pid = pid
    return worker


def test_the_readings_of_a_gpu_are_joined_to_the_workers_that_use_it(tmp_path: Path, driver: SimulatedDriver) -> None:
    whole, divided, part = "GPU-1", "GPU-2", "MIG-2"
    gpus = Gpu(uuid=whole, name="whole", memory_bytes=1), Gpu(uuid=part, name="slice", memory_bytes=1, parent=divided)
    machine = Machine(boot_id="b", hostname="h", cores=1, cpu_slots=1, memory_bytes=1, gpus=gpus)
    pid = os.getpid()
    workers = [
        _worker(tmp_path, 0, whole, pid),
        _worker(tmp_path, 1, part, pid),
        _worker(tmp_path, 2, None, pid),
        _worker(tmp_path, 3, whole),
    ]
    snapshot = NodeSnapshot(machine, 4, workers, 0, 0, Counter(), 0, 0, None)
    (info,) = [family for family in snapshot.collect() if family.name == "rolecall_worker_gpu_info"]
    of_rank = {sample.labels.pop("rank"): sample.labels for sample in info.samples}
    job = {"job": "a", "attempt": "1", "role": "trainer"}
    assert of_rank == {"0": job | {"gpu": whole}, "1": job | {"gpu": divided}}, "only running workers with a GPU"
    driver.has(SimulatedGpu(whole, use=50), SimulatedGpu(divided, use=None))
    use, used, _ = GpuCollector(GpuReadings([gpu.whole for gpu in gpus])).collect()
    assert [sample.labels for sample in use.samples] == [{"gpu": whole}]
    assert [sample.labels["gpu"] for sample in used.samples] == [whole, divided]
