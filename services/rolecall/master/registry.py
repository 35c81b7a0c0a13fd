"""The decisions about nodes: the owner of a name, the changes in a heartbeat, the desired workers.

Each change follows one order: commit, then memory (`presence`, `answers`), then waking the affected jobs and nodes.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall import __version__
from rolecall.logs import about
from rolecall.master import lifecycle
from rolecall.master.answers import HeartbeatAnswer
from rolecall.master.desired import desired, unaddressed
from rolecall.master.presence import Presence
from rolecall.master.program import Master
from rolecall.master.signals import wait
from rolecall.master.store import attempts, jobs, nodes, workers
from rolecall.master.store.records import NodeRecord
from rolecall.master.streams import StreamKey
from rolecall.master.transitions import NodeLoss, broken_gangs, lose_workers
from rolecall.spec.access import Scope
from rolecall.spec.errors import Conflict, NotFound
from rolecall.spec.node import NodeSpec
from rolecall.spec.report import WorkerReport
from rolecall.spec.role import Role
from rolecall.spec.wire import ClusterInfo, Desired, Heartbeat, ScrapeToken

_LOG = logging.getLogger(__name__)


async def register(master: Master, spec: NodeSpec) -> None:
    """Register a node. If it has restarted, the workers of its previous incarnation are lost.

    Raises `Conflict` if another live node has the name.
    """

    async def put(connection: AsyncConnection) -> tuple[nodes.Incarnation | None, NodeLoss]:
        now, loss = master.clock.now(), NodeLoss(set(), {})
        before = await nodes.incarnation(connection, spec.name)
        if before is not None and before.started != spec.started:
            known = await nodes.find(connection, spec.name)
            if known is not None:
                _refuse_rival(known, spec, master.presence)
            why = f"node {spec.name} restarted"
            loss = await lose_workers(connection, spec.name, why, now, master.catalogue.expendable)
        await nodes.put(connection, spec, now)
        return before, loss

    before, loss = await master.database.with_retry(put)
    if before is not None and before.started != spec.started:
        master.presence.mark_replaced(before.started)
    master.presence.register(spec.name, spec.started)
    master.presence.expect_call(spec.started)
    master.waking.nodes(spec.name)
    master.waking.lost(loss)


async def leave(master: Master, name: str, started: str | None = None) -> None:
    """Remove a node from the cluster. Workers that it still runs are lost.

    Does nothing if the name now belongs to another incarnation than `started`, which nodes of release 0.1 don't send.
    """

    async def remove(connection: AsyncConnection) -> NodeLoss | None:
        known = await nodes.incarnation(connection, name)
        if known is not None and started not in {None, known.started}:
            return None
        why, now = f"node {name} left the cluster", master.clock.now()
        loss = await lose_workers(connection, name, why, now, master.catalogue.expendable)
        await nodes.remove(connection, name)
        return loss

    if (loss := await master.database.with_retry(remove)) is None:
        return
    master.presence.forget(name)
    master.waking.nodes(name)
    master.waking.lost(loss)


async def cluster_info(master: Master, name: str) -> ClusterInfo:
    """The cluster's properties for the self-check of the node `name`."""
    await master.view.refresh()
    known = master.view.nodes
    if name not in known:
        raise NotFound(f"node {name} has not registered; register it again")
    own = _network(known[name].spec)
    remote = sum(master.presence.is_alive(node.name) and _network(node.spec) != own for node in known.values())
    return ClusterInfo(
        time_s=master.clock.now().timestamp(),
        monotonic_s=master.clock.monotonic(),
        version=__version__,
        boot_id=_boot_id(),
        remote_nodes=remote,
        scrape_tokens=tuple(
            ScrapeToken(digest=secret.digest, expires_at=secret.expires_at)
            for secret in master.access.known_for(Scope.METRICS)
        ),
    )


async def receive(master: Master, name: str, beat: Heartbeat) -> None:
    """Store the changes in a heartbeat, and wake the affected parts."""
    for entry in beat.unread:
        _log_once(name, entry)
    if master.presence.is_current(name, beat.started):
        # Before the database is used: the node is alive even while the database is unavailable.
        master.presence.record_heartbeat(name, beat.started)
        if master.answers.is_recorded(name, beat):
            _note(master, name, beat)
            return
    ticket = master.answers.ticket(name)
    async with master.database.read() as connection:
        node = await _current(connection, name, beat.started)
        fresh = await _has_news(connection, node, name, beat)
    master.presence.record_heartbeat(name, beat.started)
    _note(master, name, beat)
    if fresh:
        await _store(master, name, beat, node)
        ticket = ticket if not ticket.is_set() else master.answers.ticket(name)
    master.answers.record(name, beat, ticket)


async def next_answer(master: Master, name: str, beat: Heartbeat) -> HeartbeatAnswer:
    """The node's desired workers: immediately if they differ from the version that it has, otherwise after a change."""
    loop = asyncio.get_running_loop()
    until = loop.time() + min(beat.wait_s, longest_wait_s(master))
    while True:
        ticket = master.answers.ticket(name)
        answer = await _answer(master, name, beat.started, ticket)
        remaining_s = until - loop.time()
        if answer.version == beat.seen and remaining_s > 0 and not master.answers.closed:
            master.presence.expect_call(beat.started, remaining_s)
            await wait(ticket, remaining_s)
            if not master.answers.closed:  # Otherwise the call was released without a change.
                continue
        master.presence.expect_call(beat.started)
        return answer


def longest_wait_s(master: Master) -> float:
    """The maximum delay of an answer. The node is silent meanwhile, so this is much shorter than its timeout."""
    return min(master.settings.heartbeat_s, master.settings.node_timeout_s / 3)


def _note(master: Master, name: str, beat: Heartbeat) -> None:
    if master.presence.record_findings(name, beat.findings):
        master.waking.loops()


@lru_cache(maxsize=1024)
def _log_once(name: str, entry: str) -> None:
    message = "a part of node %s's heartbeat is ignored, because this release can't read it: %s"
    _LOG.warning(message, name, entry, extra=about("heartbeat_part_ignored", node=name))


async def _has_news(connection: AsyncConnection, node: nodes.Incarnation, name: str, beat: Heartbeat) -> bool:
    if node.draining != beat.draining:
        return True
    if not beat.workers:
        return False
    known = {(w.job, w.attempt, w.rank): w for w in await workers.on_node(connection, name)}
    reported = [(known.get(_key(report)), report) for report in beat.workers]
    if any(worker is not None and lifecycle.observe(worker, report) != worker for worker, report in reported):
        return True
    ports = {(one.job, one.attempt) for one in beat.workers if one.rendezvous_port is not None and one.rank == 0}
    return bool(ports and await attempts.lack_port(connection, ports))


async def _store(master: Master, name: str, beat: Heartbeat, before: nodes.Incarnation) -> None:
    """Store the heartbeat's state of the node and its workers, and wake the affected jobs and nodes."""
    for report in beat.workers:
        if report.state.ended and report.log_bytes is not None:
            master.streams.expect(StreamKey(report.job, report.attempt, report.rank, "log"), report.log_bytes)

    async def put(connection: AsyncConnection) -> tuple[_Changes, attempts.Gangs]:
        await _current(connection, name, beat.started)
        await nodes.set_draining(connection, name, beat.draining)
        changes = await _store_reports(connection, name, beat.workers, master.catalogue.expendable)
        summaries = [await jobs.summary(connection, job) for job in sorted(changes.located)]
        return changes, await attempts.gangs(connection, summaries)

    # Unlike a refusal, which would make the node register again, the repeated change leaves out what has ended.
    changes, located = await master.database.with_retry(put)
    if before.draining != beat.draining:
        master.waking.nodes(name)
    master.waking.jobs(*changes.jobs)
    master.waking.gangs(changes.broken)
    for gang in located.found:
        master.waking.gang(gang.job.id, gang.nodes)
    if changes.ended:
        master.answers.notify(name)


@dataclass(slots=True)
class _Changes:
    jobs: set[str] = field(default_factory=set[str])
    located: set[str] = field(default_factory=set[str])
    """Jobs whose rendezvous port has become known."""
    broken: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    """See `broken_gangs`."""
    ended: bool = False
    """True if a worker of the node has ended."""


async def _store_reports(
    connection: AsyncConnection,
    name: str,
    reports: tuple[WorkerReport, ...],
    expendable: Callable[[str], Collection[Role]],
) -> _Changes:
    """Store what a node reports of its workers. Returns the jobs that this changed."""
    known = {(w.job, w.attempt, w.rank): w for w in await workers.on_node(connection, name)}
    changes = _Changes()
    for report in reports:
        worker = known.get(_key(report))
        if worker is None:
            continue  # It has ended, or its attempt has. The answer tells the node.
        if (
            report.rendezvous_port is not None
            and report.rank == 0
            and await attempts.set_port(connection, report.job, report.attempt, report.rendezvous_port)
        ):
            changes.located.add(report.job)
        after = lifecycle.observe(worker, report)
        if after != worker:
            if lifecycle.has_left_alone(after):
                changes.broken |= await broken_gangs(connection, [after], expendable)
            await workers.store(connection, worker, after)
            changes.jobs.add(report.job)
            changes.ended = changes.ended or after.state.ended
    return changes


async def _answer(master: Master, name: str, started: str, ticket: asyncio.Event) -> HeartbeatAnswer:
    kept = master.answers.find(name, started)
    if kept is None:
        kept = HeartbeatAnswer.of(await _desired(master, name, started))
        master.answers.keep(name, started, kept, ticket)
    return kept


async def _desired(master: Master, name: str, started: str) -> Desired:
    """Read what `desired` needs from one snapshot of the database."""
    async with master.database.read() as connection:
        await _current(connection, name, started)
        job_ids = sorted({worker.job for worker in await workers.on_node(connection, name)})
        found = (
            (await attempts.gangs(connection, (await jobs.live(connection, job_ids)).live.values())).found
            if job_ids
            else []
        )
        params = await jobs.parameters(connection, job_ids) if found else {}
        unknown = unaddressed(found)
        others = (await nodes.load(connection, unknown)).known if unknown else {}
    addresses = {node.name: node.spec.address for node in others.values()}
    blob_url, signing_key = master.settings.blob_url, master.signing_key
    pending = master.inspections.pending
    return desired(
        name,
        found,
        params,
        addresses,
        blob_url=blob_url,
        signing_key=signing_key,
        expendable=master.catalogue.expendable,
        inspections=pending,
    )


@cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


async def _current(connection: AsyncConnection, name: str, started: str) -> nodes.Incarnation:
    node = await nodes.incarnation(connection, name)
    if node is None:
        raise NotFound(f"node {name} has not registered; register it again")
    if node.started != started:
        raise Conflict(
            f"node {name} has restarted since: this heartbeat is from an earlier incarnation; register again"
        )
    return node


def _refuse_rival(known: NodeRecord, spec: NodeSpec, presence: Presence) -> None:
    """Raise `Conflict` if the name belongs to another live node. A restarted node gets its own name again."""
    old, new = known.spec, spec
    restarted = (_network(old), old.address) == (_network(new), new.address)
    is_alive = presence.is_expected(old.started) if restarted else presence.may_be_alive(known.name)
    if is_alive or presence.is_replaced(new.started):
        raise Conflict(
            f"the name {spec.name} is taken by a live node at {old.address} on {old.machine.hostname}; the new one is "
            f"at {new.address} on {new.machine.hostname}: give one of them another ROLECALL_NODE_NAME"
        )


def _network(spec: NodeSpec) -> tuple[str, str]:
    """The machine and network namespace of a node. Nodes that have both in common share the loopback address."""
    return spec.machine.boot_id, spec.network_namespace


def _key(report: WorkerReport) -> tuple[str, int, int]:
    return report.job, report.attempt, report.rank
