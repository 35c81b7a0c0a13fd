"""What a node should be running: pure, from the gangs that have workers on it."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from rolecall.master.store.records import Gang, WorkerRecord
from rolecall.spec.plan import WorkerLaunch
from rolecall.spec.wire import Desired, DesiredWorker

Params = Mapping[str, dict[str, Any]]


def desired(
    node: str, gangs: Iterable[Gang], params: Params, addresses: Mapping[str, str], blob_url: str | None
) -> Desired:
    """The workers of `node` that have not ended, with all that they need.

    `params` has each job's. `addresses` has those of nodes whose gangs' plans don't tell them. The version is drawn
    from the content, so that it means the same after a restart of the master.
    """
    workers = tuple(
        DesiredWorker(launch=_launch(gang, worker, params, addresses, blob_url), stop=gang.attempt.stop)
        for gang in gangs
        for worker in gang.workers
        if worker.node == node and not worker.state.ended
    )
    unnumbered = Desired(version=0, workers=workers)
    digest = hashlib.sha256(unnumbered.model_dump_json().encode()).digest()
    return unnumbered.model_copy(update={"version": int.from_bytes(digest[:6])})


def unaddressed(gangs: Iterable[Gang]) -> set[str]:
    """The nodes where gangs meet whose plans don't tell the address: release 0.1.0 could store such plans."""
    firsts = {gang.attempt.plan.workers[0].node: gang.attempt.plan.addresses for gang in gangs}
    return {node for node, addresses in firsts.items() if node not in addresses}


def _launch(
    gang: Gang, worker: WorkerRecord, params: Params, addresses: Mapping[str, str], blob_url: str | None
) -> WorkerLaunch:
    plan = gang.attempt.plan
    first = plan.workers[0].node
    return WorkerLaunch(
        job=gang.job.id,
        attempt=gang.attempt.number,
        workload=gang.job.workload,
        params=params[gang.job.id],
        worker=plan.workers[worker.rank],
        gang=plan,
        master_addr=plan.addresses.get(first) or addresses.get(first, first),
        rendezvous_port=gang.attempt.rendezvous_port,
        resume_from=gang.attempt.resume_from,
        blob_url=blob_url,
    )
