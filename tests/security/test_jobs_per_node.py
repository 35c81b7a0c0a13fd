"""Jobs that run on each node: they take no slot, so their owner's limits have to count them otherwise."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.master import harness
from tests.master.harness import CATALOGUE, TOY, Client, make_token, on_master, one_trainer
from tests.running import accepted

from rolecall.master.catalogue import Catalogue
from rolecall.spec.access import Scope
from rolecall.spec.state import WorkerState
from rolecall.spec.workload import PerNodeParams, Workload

PROBE = Workload(
    name="probe", summary="It runs on every node.", package="toy", params=PerNodeParams, roles={}, per_node=True
)


@pytest.fixture(autouse=True)
def _with_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "CATALOGUE", Catalogue({"toy": TOY, "probe": PROBE}, CATALOGUE.broken))


async def probe(client: Client, token: str, **values: Any) -> httpx.Response:
    """Submit a job that runs on every node, which the master may refuse."""
    return await client.call(token, "POST", "/jobs", json={"workload": "probe", **values})


@pytest.mark.slow
async def test_a_token_runs_no_more_workers_than_its_slots(tmp_path: Path) -> None:
    async with on_master(tmp_path) as client:
        nodes = [await one_trainer(client, name) for name in ("trainer-0", "trainer-1")]
        token = await make_token(client, "tiny", Scope.SUBMIT, max_slots=1, max_queued=1)
        refused = await probe(client, token)
        assert refused.status_code == 422
        (problem,) = refused.json()["errors"]
        assert problem["field"] == "params.nodes"
        assert problem["message"].endswith("each of 2 nodes, and token tiny may run 1 at once (max_slots)")
        first = accepted(await probe(client, token, params={"nodes": ["trainer-0"]}))["id"]
        (worker,) = await nodes[0].workers()
        second = accepted(await probe(client, token, params={"nodes": ["trainer-1"]}))["id"]
        waits = await client.until(second, "queued", also=lambda job: job["waiting_for"])
        assert waits["waiting_for"].endswith("token tiny uses 1 of its 1 slots, and this job needs 1")
        assert (await probe(client, token, params={"nodes": ["trainer-1"]})).status_code == 429
        await nodes[0].say(worker, WorkerState.SUCCEEDED, exit_code=0)
        await client.until(first, "succeeded", "failed")
        await client.until(second, "placed")


async def test_a_node_runs_one_such_job_at_a_time(tmp_path: Path) -> None:
    async with on_master(tmp_path) as client:
        node = await one_trainer(client)
        token = await make_token(client, "busy", Scope.SUBMIT)
        ids = [accepted(await probe(client, token))["id"] for _ in range(3)]
        (worker,) = await node.workers()
        waits = await client.until(ids[1], "queued", also=lambda job: job["waiting_for"])
        assert waits["waiting_for"].endswith(f"job {ids[0]} goes first on node trainer-0")
        await node.say(worker, WorkerState.SUCCEEDED, exit_code=0)
        await client.until(ids[1], "placed")
        assert (await client.job(ids[2]))["state"] == "queued"
