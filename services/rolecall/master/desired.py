"""A node's desired workers, from the gangs that have workers on it. Pure."""

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from rolecall.master.lifecycle import has_left_alone
from rolecall.master.store.records import Gang, WorkerRecord
from rolecall.spec.inspection import Inspection
from rolecall.spec.plan import WorkerLaunch
from rolecall.spec.role import Role
from rolecall.spec.state import StopMode, WorkerState
from rolecall.spec.token import attempt_token, gang_secret
from rolecall.spec.wire import Desired, DesiredWorker

Params = Mapping[str, dict[str, Any]]


def desired(
    node: str,
    gangs: Iterable[Gang],
    params: Params,
    addresses: Mapping[str, str],
    *,
    blob_url: str | None,
    signing_key: str,
    expendable: Callable[[str], Collection[Role]],
    inspections: Mapping[tuple[str, int, int], Inspection] | None = None,
) -> Desired:
    """The workers of `node` that have not ended, with the data to launch them.

    `params` has the parameters of each job. `addresses` has the addresses of nodes that are missing in the gangs'
    plans. `expendable` returns the roles that gangs of a workload can lose. `inspections` has the pending requests to
    workers, by job, attempt and rank. Tokens and secrets of attempts are derived from `signing_key`. The version is a
    digest of the content, so that it stays the same after a restart of the master.
    """

    def launch(gang: Gang, worker: WorkerRecord) -> WorkerLaunch:
        plan = gang.attempt.plan
        first = plan.workers[0].node
        return WorkerLaunch(
            job=gang.job.id,
            owner=gang.job.owner,
            attempt=gang.attempt.number,
            workload=gang.job.workload,
            params=params[gang.job.id],
            worker=plan.workers[worker.rank],
            gang=plan,
            master_addr=plan.addresses.get(first) or addresses.get(first, first),
            rendezvous_port=gang.attempt.rendezvous_port,
            resume_from=gang.attempt.resume_from,
            secret=gang_secret(signing_key, gang.job.id, gang.attempt.number),
            token=attempt_token(signing_key, gang.job.id, gang.attempt.number),
            blob_url=blob_url,
        )

    workers = tuple(
        DesiredWorker(
            launch=launch(gang, worker),
            stop=stop,
            inspection=(inspections or {}).get((worker.job, worker.attempt, worker.rank)),
        )
        for gang in gangs
        for stop in (_stop_mode(gang, expendable(gang.job.workload)),)
        for worker in gang.workers
        if worker.node == node and not worker.state.ended
    )
    unnumbered = Desired(version=0, workers=workers)
    digest = hashlib.sha256(unnumbered.model_dump_json().encode()).digest()
    return unnumbered.model_copy(update={"version": int.from_bytes(digest[:6])})


def _stop_mode(gang: Gang, expendable: Collection[Role]) -> StopMode | None:
    """The mode in which a gang's workers stop: immediately if they would wait for each other in vain.

    Workers leave a gang together. A gang that has never been complete has nothing to save, and the nodes kill those of
    its workers that have not joined. After a worker has left alone, the others can't leave in order, and its part of
    their checkpoint can be missing.
    """
    stop = gang.attempt.stop
    if stop in {None, StopMode.COMPLETE}:
        return stop
    waiting = any(one.state in {WorkerState.ASSIGNED, WorkerState.STARTING} for one in gang.workers)
    incomplete = any(has_left_alone(one) for one in gang.workers if one.role not in expendable)
    return StopMode.ABORT if gang.job.started_at is None or waiting or incomplete else stop


def unaddressed(gangs: Iterable[Gang]) -> set[str]:
    """The nodes of rank 0 whose addresses are missing in their gangs' plans, which release 0.1.0 could store."""
    firsts = {gang.attempt.plan.workers[0].node: gang.attempt.plan.addresses for gang in gangs}
    return {node for node, addresses in firsts.items() if node not in addresses}
