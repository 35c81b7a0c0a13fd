"""The metrics that master, node and workers export, as their collectors describe them."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from prometheus_client.core import Metric

from rolecall.master.instruments import Instruments
from rolecall.master.job_metrics import JobMetrics
from rolecall.master.metrics import Snapshot
from rolecall.node.telemetry import NodeSnapshot, gpu_families
from rolecall.spec.api import Volume
from rolecall.spec.node import Machine
from rolecall.spec.state import JobState

_PARTS = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
_IDLE = JobMetrics(running=(), ended=(), goodputs={}, checkpoints={}, places={})


@dataclass(frozen=True, slots=True)
class Exported:
    """A metric, by the name that queries use."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str

    @property
    def series(self) -> set[str]:
        """The names of its series in Prometheus."""
        return {f"{self.name}{part}" for part in _PARTS.get(self.kind, ("",))}


def master() -> list[Exported]:
    """Those of the master, without those of jobs."""
    jobs = {one.name for one in _IDLE.collect()}
    return _described([*(one for one in _snapshot().collect() if one.name not in jobs), *_instruments()])


def jobs() -> list[Exported]:
    """Those of jobs, which the master exports."""
    return _described(_IDLE.collect())


def node() -> list[Exported]:
    """Those of a node, and of its GPUs and workers."""
    machine = Machine(boot_id="", hostname="", cores=1, cpu_slots=1, memory_bytes=0)
    idle = NodeSnapshot(machine, 1, (), 0, 0, Counter(), 0, 0, None)
    return _described([*idle.collect(), *gpu_families(())])


def everything() -> list[Exported]:
    """The metrics of all programs."""
    return [*master(), *jobs(), *node()]


def _snapshot() -> Snapshot:
    """That of a master without jobs and nodes."""
    return Snapshot(
        counts=dict.fromkeys(JobState, 0),
        oldest_queued_at=None,
        waits={},
        jobs=_IDLE,
        nodes=[],
        taken=(),
        pulses={},
        volume=Volume(free=0, total=0, reserve=0),
        now=datetime.now(UTC),
    )


def _instruments() -> Iterable[Metric]:
    used = Instruments()
    # Without a value, they have no labels.
    used.request("", "", 200, 0.0)
    used.transaction("", 0.0)
    used.export("", "accepted")
    return used.registry.collect()


def _described(families: Iterable[Metric]) -> list[Exported]:
    return [
        Exported(f"{one.name}_total" if one.type == "counter" else one.name, one.type, _labels(one), one.documentation)
        for one in families
    ]


def _labels(family: Metric) -> tuple[str, ...]:
    """The names of its labels. A family without values has them only in a private attribute."""
    found: Iterator[str] = (name for sample in family.samples for name in sample.labels if name != "le")
    return tuple(getattr(family, "_labelnames", dict.fromkeys(found)))
