"""`/internal/nodes`: how nodes register, tell what they run, and learn what they should."""

import time
from datetime import UTC, datetime

from fastapi import APIRouter, Depends
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall import __version__
from rolecall.master import lifecycle
from rolecall.master.api.auth import Running, require_node
from rolecall.master.core import Master
from rolecall.master.desired import desired
from rolecall.master.presence import Presence
from rolecall.master.reconciler import lose_workers
from rolecall.master.signals import wait
from rolecall.master.store import attempts, jobs, nodes, workers
from rolecall.master.store.records import NodeRecord
from rolecall.spec.errors import Conflict, NotFound
from rolecall.spec.node import NodeSpec
from rolecall.spec.report import WorkerReport
from rolecall.spec.wire import Desired, Heartbeat, Registered

router = APIRouter(prefix="/internal/nodes", tags=["nodes"], dependencies=[Depends(require_node)])


@router.post("", summary="Register a node")
async def register(spec: NodeSpec, master: Running) -> Registered:
    """Enter the cluster, or enter it again after a restart: then the workers of the earlier life are lost."""
    now = datetime.now(UTC)
    async with master.database.write() as connection:
        known = await nodes.find(connection, spec.name)
        if known is not None and known.started != spec.started:
            _refuse_usurper(known, spec, master.presence)
            await lose_workers(connection, spec.name, f"node {spec.name} restarted", now)
        await nodes.put(connection, spec, now)
    master.presence.hear(spec.name)
    master.changed_by_hand()
    return Registered(heartbeat_s=_longest_wait_s(master), master_version=__version__)


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
            return answer
        await wait(ticket, remaining_s)


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
    async with master.database.read() as connection:
        node = await _living(connection, name, beat.started)
        fresh = await _news(connection, node, beat)
    master.presence.hear(name)
    if not fresh:
        return False
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
    return desired(name, gangs, addresses, master.settings.blob_url)


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


def _refuse_usurper(known: NodeRecord, spec: NodeSpec, presence: Presence) -> None:
    old, new = known.spec, spec
    same_place = (old.machine.boot_id, old.address) == (new.machine.boot_id, new.address)
    if not same_place and not presence.is_lost(known.name):
        raise Conflict(
            f"the name {spec.name} is taken by a live node at {old.address} on {old.machine.hostname}; the new one is "
            f"at {new.address} on {new.machine.hostname}: give one of them another ROLECALL_NODE_NAME"
        )


def _key(report: WorkerReport) -> tuple[str, int, int]:
    return report.job, report.attempt, report.rank
