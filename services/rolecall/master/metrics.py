"""The master's metrics for Prometheus. Names contain their units and start with `rolecall_`."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric, SummaryMetricFamily

from rolecall.master.history import Running
from rolecall.master.job_metrics import KEPT, MAX_ENDED, JobMetrics, gauge
from rolecall.master.placement import Cluster, WaitCause
from rolecall.master.program import Master
from rolecall.master.seats import Need
from rolecall.master.storage_errors import Pulse
from rolecall.master.store import checkpoints, jobs
from rolecall.spec.api import Volume
from rolecall.spec.metric import places
from rolecall.spec.node import NodeState
from rolecall.spec.plan import WorkerPlan
from rolecall.spec.role import Role
from rolecall.spec.state import JobState

_AMONG = 2000
"""The number of the newest jobs among which those are sought that have ended recently."""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The values of all metrics at one point in time."""

    counts: dict[JobState, int]
    oldest_queued_at: datetime | None
    waits: Mapping[WaitCause, int]
    """Queued jobs by what they wait for."""
    jobs: JobMetrics
    nodes: list[NodeState]
    taken: Sequence[WorkerPlan]
    pulses: Mapping[str, Pulse]
    """The passes of each loop."""
    volume: Volume
    now: datetime

    def collect(self) -> Iterator[Metric]:
        """The gauges, as a collector of prometheus_client."""
        yield from _queue(self)
        yield from _nodes(self)
        yield from self.jobs.collect()
        yield from _loops(self.pulses)
        yield from _volume(self.volume)


async def exposition(master: Master) -> bytes:
    """The text of `GET /metrics`."""
    registry = CollectorRegistry()
    registry.register(await _observe(master))
    # In a thread, because computing the free slots of a large cluster takes long.
    return await asyncio.to_thread(lambda: generate_latest(registry) + generate_latest(master.instruments.registry))


async def _observe(master: Master) -> Snapshot:
    """The current values. Only counts, times, and progress that is not in memory yet, come from the database."""
    view, now = master.view, master.clock.now()
    await view.refresh()
    gangs = list(view.gangs.values())
    ids = [gang.job.id for gang in gangs]
    in_memory = {g.job.id: newest for g in gangs if (newest := master.progress.of_job(g.job.id, g.job.attempt))}
    async with master.database.read() as connection:
        counts = await jobs.count_by_state(connection)
        stored = await jobs.progress_of(connection, [job for job in ids if job not in in_memory])
        ended = await jobs.recently_ended(connection, now - KEPT, limit=MAX_ENDED, among=_AMONG)
        progress = stored | in_memory
        running = [Running(gang.job, gang.attempt, progress.get(gang.job.id)) for gang in gangs]
        goodputs = await master.history.goodputs(connection, running, ended, now)
        written = await checkpoints.newest_times(connection, ids)
    workloads = master.catalogue.workloads
    return Snapshot(
        counts=counts,
        oldest_queued_at=min((job.queued_at for job in view.queue.values()), default=None),
        waits=master.placer.causes(),
        jobs=JobMetrics(running, ended, goodputs, written, {name: places(w.metrics) for name, w in workloads.items()}),
        nodes=master.presence.states(view.nodes.values()),
        taken=view.taken(),
        pulses={name: loop.pulse for name, loop in master.loops.items()},
        volume=await master.reserve.volume(),
        now=now,
    )


def _queue(snapshot: Snapshot) -> Iterator[GaugeMetricFamily]:
    oldest = snapshot.oldest_queued_at
    age_s = (snapshot.now - oldest).total_seconds() if oldest else 0.0
    counts = (([state.value], float(count)) for state, count in snapshot.counts.items())
    yield gauge("rolecall_jobs", "Jobs by state.", ["state"], counts)
    yield gauge("rolecall_queue_depth", "Jobs that wait for slots.", [], [([], snapshot.counts[JobState.QUEUED])])
    about = "Seconds that the oldest queued job has waited; 0 when none waits."
    yield gauge("rolecall_queue_oldest_age_seconds", about, [], [([], age_s)])
    waits = (([cause.value], float(snapshot.waits.get(cause, 0))) for cause in WaitCause)
    yield gauge("rolecall_queue_waiting_jobs", "Queued jobs by what they wait for.", ["reason"], waits)


def _nodes(snapshot: Snapshot) -> Iterator[GaugeMetricFamily]:
    def per_role(values: Iterable[float]) -> Iterable[tuple[list[str], float]]:
        return (([role.value], value) for role, value in zip(Role, values, strict=True))

    alive = [sum(node.alive and node.spec.role is role for node in snapshot.nodes) for role in Role]
    cluster = Cluster(snapshot.nodes)
    empty, busy = cluster.seating(()), cluster.seating(snapshot.taken)
    total = [empty.room(Need(role)) for role in Role]
    free = [busy.room(Need(role)) for role in Role]
    ages = (([node.spec.name, node.spec.role.value], node.heartbeat_age_s) for node in snapshot.nodes)
    yield gauge("rolecall_nodes", "Nodes that are alive.", ["role"], per_role(alive))
    yield gauge("rolecall_slots", "Workers that the live nodes can take in total.", ["role"], per_role(total))
    yield gauge("rolecall_slots_free", "Workers that the live nodes can take now.", ["role"], per_role(free))
    about = "Seconds since the node's last heartbeat."
    yield gauge("rolecall_node_heartbeat_age_seconds", about, ["node", "role"], ages)


def _loops(pulses: Mapping[str, Pulse]) -> Iterator[Metric]:
    about = "Seconds since the last successful pass of the master's loop."
    yield gauge("rolecall_loop_idle_seconds", about, ["loop"], (([n], pulse.silent_s) for n, pulse in pulses.items()))
    passes = SummaryMetricFamily(
        "rolecall_loop_pass_seconds", "Seconds of the loop's successful passes.", labels=["loop"]
    )
    for name, pulse in pulses.items():
        passes.add_metric([name], pulse.passes, pulse.busy_s)
    yield passes


def _volume(volume: Volume) -> Iterator[Metric]:
    about = "Free space of the master's volume (ROLECALL_DATA)."
    yield GaugeMetricFamily("rolecall_volume_free_bytes", about, volume.free)
    yield GaugeMetricFamily("rolecall_volume_total_bytes", "Size of the master's volume.", volume.total)
    about = "The free space below which it stores no logs and uploads (ROLECALL_RESERVE_BYTES)."
    yield GaugeMetricFamily("rolecall_volume_reserve_bytes", about, volume.reserve)
