"""`/internal/nodes`: how nodes register, tell what they run, and learn what they should."""

import time
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Depends
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall import __version__
from rolecall.master import lifecycle
from rolecall.master.api.auth import Running, needs
from rolecall.master.core import Master
from rolecall.master.desired import desired
from rolecall.master.presence import Presence
from rolecall.master.reconciler import lose_workers
from rolecall.master.signals import wait
from rolecall.master.store import attempts, jobs, nodes, workers
from rolecall.master.store.records import NodeRecord
from rolecall.master.streams import StreamKey
from rolecall.spec.access import Scope
from rolecall.spec.errors import Conflict, NotFound
from rolecall.spec.node import NodeSpec
from rolecall.spec.report import WorkerReport
from rolecall.spec.wire import Desired, Heartbeat, Registered, Surroundings

router = APIRouter(prefix="/internal/nodes", tags=["nodes"], dependencies=[Depends(needs(Scope.NODE))])


@router.post("", summary="Register a node")
async def register(spec: NodeSpec, master: Running) -> Registered:
    """Enter the cluster, or enter it again after a restart: then the workers of the earlier life are lost."""
    now = datetime.now(UTC)
    async with master.database.write() as connection:
        known = await nodes.find(connection, spec.name)
        if known is not None and known.started != spec.started:
            _refuse_rival(known, spec, master.presence)
            master.presence.replace(known.started)
            await lose_workers(connection, spec.name, f"node {spec.name} restarted", now)
        await nodes.put(connection, spec, now)
    master.presence.enter(spec.name, spec.started)
    master.presence.hold(spec.started)
    master.changed_by_hand()
    return Registered(
        heartbeat_s=_longest_wait_s(master),
        master_version=__version__,
        node_timeout_s=master.settings.node_timeout_s,
    )


@router.post("/{name}/heartbeat", summary="Report and ask")
async def heartbeat(name: str, beat: Heartbeat, master: Running) -> Desired:
    """Take in what the node runs; answer with what it should run, at once or as soon as that changes."""
    if await _take_in(master, name, beat):
        master.changed_by_hand()
    until = time.monotonic() + min(beat.wait_s, _longest_wait_s(master))
    while True:
        ticket = master.changed.ticket()
        answer = await _desired(master, name, beat.started)
        remaining_s = until - time.monotonic()
        if answer.version != beat.seen or remaining_s <= 0 or master.changed.closed:
            master.presence.hold(beat.started)
            return answer
        master.presence.hold(beat.started, remaining_s)
        await wait(ticket, remaining_s)


@router.get("/{name}/surroundings", summary="Look around")
async def surroundings(name: str, master: Running) -> Surroundings:
    """What a node measures itself against: the master's clock and version, and who else is there."""
    async with master.database.read() as connection:
        states = master.presence.states(await nodes.everything(connection))
    own = next((state.spec for state in states if state.spec.name == name), None)
    if own is None:
        raise NotFound(f"node {name} has not registered; register it again")
    strangers = sum(state.alive and _place(state.spec) != _place(own) for state in states)
    return Surroundings(time_s=time.time(), version=__version__, boot_id=_boot_id(), strangers=strangers)


@router.delete("/{name}", status_code=204, summary="Leave")
async def leave(name: str, master: Running) -> None:
    """Take a node out of the cluster; what it still runs is lost."""
    async with master.database.write() as connection:
        await lose_workers(connection, name, f"node {name} left the cluster", datetime.now(UTC))
        await nodes.remove(connection, name)
    master.presence.forget(name)
    master.changed_by_hand()


async def _take_in(master: Master, name: str, beat: Heartbeat) -> bool:
    """Store what is new in a heartbeat; return whether anything was."""
    if master.presence.knows(name, beat.started):
        # Before the database is asked: while that one is away, the node lives nevertheless.
        master.presence.hear(name, beat.started)
    async with master.database.read() as connection:
        node = await _living(connection, name, beat.started)
        fresh = await _news(connection, node, beat)
    master.presence.hear(name, beat.started)
    otherwise = master.presence.note(name, beat.findings)
    if not fresh:
        return otherwise
    for report in beat.workers:
        if report.state.ended and report.log_bytes is not None:
            master.streams.expect(StreamKey(report.job, report.attempt, report.rank, "log"), report.log_bytes)
    async with master.database.write() as connection:
        node = await _living(connection, name, beat.started)
        await nodes.set_draining(connection, name, beat.draining)
        await _store_reports(connection, name, beat.workers)
    return True


async def _news(connection: AsyncConnection, node: NodeRecord, beat: Heartbeat) -> bool:
    known = {(w.job, w.attempt, w.rank): w for w in await workers.on_node(connection, node.name)}
    ports = [report for report in beat.workers if report.rendezvous_port is not None and report.rank == 0]
    told = [(known.get(_key(report)), report) for report in beat.workers]
    changed = any(worker is not None and lifecycle.observe(worker, report) != worker for worker, report in told)
    return changed or node.draining != beat.draining or await _has_new_port(connection, ports)


async def _has_new_port(connection: AsyncConnection, reports: list[WorkerReport]) -> bool:
    keys = {(report.job, report.attempt) for report in reports}
    tries = await attempts.of_jobs(connection, {job for job, _ in keys}) if keys else []
    return any((one.job, one.number) in keys and one.rendezvous_port is None for one in tries)


async def _store_reports(connection: AsyncConnection, name: str, reports: tuple[WorkerReport, ...]) -> None:
    known = {(w.job, w.attempt, w.rank): w for w in await workers.on_node(connection, name)}
    for report in reports:
        worker = known.get(_key(report))
        if worker is None:
            continue  # It ended, or its attempt is over: the node learns that from the answer.
        if report.rendezvous_port is not None and report.rank == 0:
            await attempts.set_port(connection, report.job, report.attempt, report.rendezvous_port)
        after = lifecycle.observe(worker, report)
        if after != worker:
            await workers.store(connection, worker, after)


async def _desired(master: Master, name: str, started: str) -> Desired:
    async with master.database.read() as connection:
        await _living(connection, name, started)
        mine = {worker.job for worker in await workers.on_node(connection, name)}
        gangs = await attempts.gangs(connection, [await jobs.get(connection, job) for job in sorted(mine)])
        addresses = {node.name: node.spec.address for node in await nodes.everything(connection)} if gangs else {}
    return desired(name, gangs, addresses, master.settings.blob_url, master.signing_key)


@cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _longest_wait_s(master: Master) -> float:
    """A node whose heartbeat is held back is silent: never so long that it could be called lost."""
    return min(master.settings.heartbeat_s, master.settings.node_timeout_s / 3)


async def _living(connection: AsyncConnection, name: str, started: str) -> NodeRecord:
    node = await nodes.find(connection, name)
    if node is None:
        raise NotFound(f"node {name} has not registered; register it again")
    if node.started != started:
        raise Conflict(f"node {name} has restarted since: this heartbeat is of an earlier life; register again")
    return node


def _refuse_rival(known: NodeRecord, spec: NodeSpec, presence: Presence) -> None:
    """Of two living nodes of one name, the one that came first stays; a restarted one takes its own place again."""
    old, new = known.spec, spec
    restarted = (_place(old), old.address) == (_place(new), new.address)
    lives = presence.holds(old.started) if restarted else presence.may_live(known.name)
    if lives or presence.is_replaced(new.started):
        raise Conflict(
            f"the name {spec.name} is taken by a live node at {old.address} on {old.machine.hostname}; the new one is "
            f"at {new.address} on {new.machine.hostname}: give one of them another ROLECALL_NODE_NAME"
        )


def _place(spec: NodeSpec) -> tuple[str, str]:
    """The network namespace of a machine: within it all share the loopback addresses."""
    return spec.machine.boot_id, spec.network_namespace


def _key(report: WorkerReport) -> tuple[str, int, int]:
    return report.job, report.attempt, report.rank
