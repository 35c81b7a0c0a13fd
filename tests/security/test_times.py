"""Points in time that no clock shows, at the edge of what a `datetime` can hold."""

import json
from pathlib import Path

import pytest
from tests.master.harness import ONE_TRAINER, line, on_master, one_trainer

from rolecall.spec.state import WorkerState

EDGES = ["0001-01-01T00:00:00+22:11", "9999-12-31T23:59:59-12:00"]


@pytest.mark.parametrize("edge", EDGES)
async def test_a_time_at_the_edge_is_refused(edge: str, tmp_path: Path) -> None:
    async with on_master(tmp_path) as client:
        pruned = await client.user("POST", "/jobs/prune", json={"ended_before": edge, "dry_run": True})
        made = await client.user("POST", "/tokens", json={"name": "x", "scopes": ["read"], "expires_at": edge})
        assert [pruned.status_code, made.status_code] == [422, 422]
        assert "years 2 to 9998" in pruned.text


@pytest.mark.parametrize("edge", EDGES)
async def test_a_report_of_a_time_at_the_edge_costs_its_worker_alone(edge: str, tmp_path: Path) -> None:
    async with on_master(tmp_path) as client:
        node = await one_trainer(client)
        job = (await client.submit(roles=ONE_TRAINER))["id"]
        (worker,) = await node.workers()
        await node.say(worker, WorkerState.RUNNING)
        lines = [json.dumps({"kind": "step", "step": 3, "at": edge}), line("step", step=4).model_dump_json()]
        await node.ship(worker, "progress", "".join(f"{one}\n" for one in lines).encode())
        await client.until(job, "running", also=lambda document: document["progress"]["step"] == 4)
        (report,) = node.reports.values()
        body = report.model_dump(mode="json") | {"joined_at": edge}
        beat = {"started": node.spec.started, "seen": -1, "wait_s": 0, "workers": [body]}
        answer = await client.internal("POST", f"/nodes/{node.spec.name}/heartbeat", json=beat)
        assert answer.status_code == 200, answer.text
        assert (await client.job(job))["state"] == "running"
