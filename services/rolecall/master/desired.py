"""A node's desired workers, from the gangs that have workers on it. Pure."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from rolecall.master.store.records import Gang, WorkerRecord
from rolecall.spec.inspection import Inspection
from rolecall.spec.plan import WorkerLaunch
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
    inspections: Mapping[tuple[str, int, int], Inspection] | None = None,
) -> Desired:
    """The workers of `node` that have not ended, with the data to launch them.

    `inspections` has the pending requests to workers, by job, attempt and rank.

    `params` has the parameters of each job. `addresses` has the addresses of nodes that are missing in the gangs'
    plans. Tokens and secrets of attempts are derived from `signing_key`. The version is a digest of the content, so
    that it stays the same after a restart of the master.
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
            stop=gang.attempt.stop,
            inspection=(inspections or {}).get((worker.job, worker.attempt, worker.rank)),
        )
        for gang in gangs
        for worker in gang.workers
        if worker.node == node and not worker.state.ended
    )
    unnumbered = Desired(version=0, workers=workers)
    digest = hashlib.sha256(unnumbered.model_dump_json().encode()).digest()
    return unnumbered.model_copy(update={"version": int.from_bytes(digest[:6])})


def unaddressed(gangs: Iterable[Gang]) -> set[str]:
    """The nodes of rank 0 whose addresses are missing in their gangs' plans, which release 0.1.0 could store."""
    firsts = {gang.attempt.plan.workers[0].node: gang.attempt.plan.addresses for gang in gangs}
    return {node for node, addresses in firsts.items() if node not in addresses}
