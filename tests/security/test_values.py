"""Texts and numbers that a database can't store are the caller's mistake and no defect of the master."""

from pathlib import Path
from typing import Any

import pytest
from tests.master.harness import ONE_TRAINER, make_node, make_settings, one_trainer, serving

from rolecall.spec.role import Role

HUGE = 10**30


async def provoke(settings: Any) -> None:
    async with serving(settings) as client:
        node = await one_trainer(client)
        job = (await client.submit(roles=ONE_TRAINER))["id"]
        (worker,) = await node.workers()
        stream = f"/jobs/{job}/attempts/1/ranks"
        manifest: dict[str, Any] = {"attempt": 1, "step": HUGE, "parts": [], "position": {}}
        unregistered = make_node("unregistered", Role.OBSERVER, boot="m1").model_dump(mode="json")
        beat = {"started": node.spec.started}
        report = {"job": job, "attempt": 1, "rank": worker.launch.worker.rank, "state": "running"}
        answers = [
            await client.user("GET", "/jobs/%00"),
            await client.user("POST", "/jobs/a%00b/cancel"),
            await client.user("GET", f"/jobs/{job}/artifacts/%00"),
            await client.user("GET", "/nodes/%00/preflight"),
            await client.user("GET", "/workloads/%00"),
            await client.user("GET", "/jobs/%ff%fe"),
            await client.user("POST", "/jobs", json={"workload": "toy"}, headers={"Idempotency-Key": "k" * 256}),
            await client.worker("POST", job, 1, "/attempts/1/checkpoints", json=manifest),
            await client.worker("PUT", job, 1, "/attempts/1/blobs/%00", content=b"x"),
            await client.worker("GET", job, 1, f"/blobs/{HUGE}/a"),
            await client.internal("PUT", f"{stream}/{10**300}/streams/log", params={"offset": 0}, content=b"x"),
            await client.internal("PUT", f"{stream}/0/streams/log", params={"offset": HUGE}, content=b"x"),
            await client.internal("POST", "/nodes/%00/heartbeat", json=beat),
            await client.internal("DELETE", "/nodes/%00"),
            *[
                await client.internal(
                    "POST", f"/nodes/{node.spec.name}/heartbeat", json=beat | {"workers": [report | wrong]}
                )
                for wrong in ({"pid": HUGE}, {"exit_code": -HUGE}, {"rendezvous_port": HUGE}, {"attempt": HUGE})
            ],
            await client.internal("POST", "/nodes", json=unregistered | {"started": "a\0b"}),
            await client.internal("POST", "/nodes", json=unregistered | {"slots": HUGE}),
        ]
        failed = [(str(one.request.url)[:200], one.status_code) for one in answers if one.status_code >= 500]
        assert failed == []
        assert (await client.job(job))["state"] == "placed"


async def test_values_that_sqlite_can_not_store(tmp_path: Path) -> None:
    await provoke(make_settings(tmp_path))


@pytest.mark.slow
async def test_values_that_postgresql_can_not_store(tmp_path: Path, database_url: str) -> None:
    await provoke(make_settings(tmp_path, database_url=database_url))
