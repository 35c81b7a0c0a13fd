"""The master's metrics for Prometheus. Names contain their units and start with `rolecall_`."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily

from rolecall.master.access_sync import AccessSync
from rolecall.master.placement import Cluster
from rolecall.master.program import Master
from rolecall.master.seats import Need
from rolecall.master.store import jobs
from rolecall.master.store.records import JobSummary
from rolecall.spec.job import Progress
from rolecall.spec.node import NodeState
from rolecall.spec.plan import WorkerPlan
from rolecall.spec.role import Role
from rolecall.spec.state import JobState


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The values of all metrics at one point in time."""

    counts: dict[JobState, int]
    oldest_queued_at: datetime | None
    running: list[tuple[JobSummary, Progress]]
    """Jobs that hold slots, with their newest progress."""
    nodes: list[NodeState]
    taken: Sequence[WorkerPlan]
    idle_s: dict[str, float]
    """Seconds since the last successful pass of each loop."""
    now: datetime

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The gauges, as a collector of prometheus_client."""
        yield from _queue(self)
        yield from _nodes(self)
        yield from _running(self)
        about = "Seconds since the last successful pass of the master's loop."
        idle = (([loop], idle_s) for loop, idle_s in self.idle_s.items())
        yield _gauge("rolecall_loop_idle_seconds", about, ["loop"], idle)


async def exposition(master: Master) -> bytes:
    """The text of `GET /metrics`."""
    registry = CollectorRegistry()
    registry.register(await _observe(master))
    # In a thread, because computing the free slots of a large cluster takes long.
    return await asyncio.to_thread(lambda: generate_latest(registry) + generate_latest(master.metrics_registry))


async def _observe(master: Master) -> Snapshot:
    """The current values. Only counts, and progress that is not in memory yet, come from the database."""
    view = master.view
    await view.refresh()
    running = [gang.job for gang in view.gangs.values()]
    in_memory = {job.id: newest for job in running if (newest := master.progress.of_job(job.id, job.attempt))}
    async with master.database.read() as connection:
        counts = await jobs.count_by_state(connection)
        stored = await jobs.progress_of(connection, [job.id for job in running if job.id not in in_memory])
    progress = stored | in_memory
    return Snapshot(
        counts=counts,
        oldest_queued_at=min((job.queued_at for job in view.queue.values()), default=None),
        running=[(job, progress.get(job.id, Progress())) for job in running],
        nodes=master.presence.states(view.nodes.values()),
        taken=view.taken(),
        idle_s={name: loop.pulse.silent_s for name, loop in master.loops.items() if not isinstance(loop, AccessSync)},
        now=master.clock.now(),
    )


def _queue(snapshot: Snapshot) -> Iterator[GaugeMetricFamily]:
    oldest = snapshot.oldest_queued_at
    age_s = (snapshot.now - oldest).total_seconds() if oldest else 0.0
    counts = (([state.value], float(count)) for state, count in snapshot.counts.items())
    yield _gauge("rolecall_jobs", "Jobs by state.", ["state"], counts)
    yield _gauge("rolecall_queue_depth", "Jobs that wait for slots.", [], [([], snapshot.counts[JobState.QUEUED])])
    about = "Seconds that the oldest queued job has waited; 0 when none waits."
    yield _gauge("rolecall_queue_oldest_age_seconds", about, [], [([], age_s)])


def _nodes(snapshot: Snapshot) -> Iterator[GaugeMetricFamily]:
    def per_role(values: Iterable[float]) -> Iterable[tuple[list[str], float]]:
        return (([role.value], value) for role, value in zip(Role, values, strict=True))

    alive = [sum(node.alive and node.spec.role is role for node in snapshot.nodes) for role in Role]
    cluster = Cluster(snapshot.nodes)
    empty, busy = cluster.seating(()), cluster.seating(snapshot.taken)
    total = [empty.room(Need(role)) for role in Role]
    free = [busy.room(Need(role)) for role in Role]
    ages = (([node.spec.name, node.spec.role.value], node.heartbeat_age_s) for node in snapshot.nodes)
    yield _gauge("rolecall_nodes", "Nodes that are alive.", ["role"], per_role(alive))
    yield _gauge("rolecall_slots", "Workers that the live nodes can take in total.", ["role"], per_role(total))
    yield _gauge("rolecall_slots_free", "Workers that they can take now.", ["role"], per_role(free))
    about = "Seconds since the node's last heartbeat."
    yield _gauge("rolecall_node_heartbeat_age_seconds", about, ["node", "role"], ages)


def _running(snapshot: Snapshot) -> Iterator[GaugeMetricFamily]:
    labels = ["job", "workload"]
    named = [([job.id, job.workload], job, progress) for job, progress in snapshot.running]
    states = (([*who, job.state.value], 1.0) for who, job, _ in named)
    losses = ((who, progress.loss) for who, _, progress in named if progress.loss is not None)
    speeds = ((who, p.samples_per_s) for who, _, p in named if p.samples_per_s is not None)
    yield _gauge("rolecall_job_state", "1 for the state that the job is in.", [*labels, "state"], states)
    yield _gauge("rolecall_job_attempt", "The running attempt's number.", labels, ((w, j.attempt) for w, j, _ in named))
    yield _gauge("rolecall_job_step", "The newest optimizer step.", labels, ((w, p.step) for w, _, p in named))
    yield _gauge("rolecall_job_loss", "The newest training loss.", labels, losses)
    yield _gauge("rolecall_job_samples_per_second", "Samples trained per second.", labels, speeds)


def _gauge(name: str, about: str, labels: list[str], values: Iterable[tuple[list[str], float]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, about, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family
