"""The node's `/metrics`."""

import threading
from collections.abc import Iterator

import httpx
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import SecretStr
from tests.node.harness import METRICS_TOKEN

from rolecall.node.health import NodeHealth
from rolecall.node.telemetry import app
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
    served = app(NodeHealth("n", Role.TRAINER), SecretStr(METRICS_TOKEN))
    served.state.registry.register(_Where("daemon"))
    served.state.slow.register(_Where("driver"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served), base_url="http://node") as client:
        answer = await client.get("/metrics", headers={"Authorization": f"Bearer {METRICS_TOKEN}"})
    assert {"daemon 1.0", "driver 0.0"} <= set(answer.text.splitlines())
