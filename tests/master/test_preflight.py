"""`GET /nodes/{node}/preflight` reads only the examinations that it needs: each may be large."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from rolecall.master.store import attempts, jobs
from rolecall.master.store.records import JobRecord
from rolecall.spec.access import ADMIN, Scope
from rolecall.spec.job import JobSpec
from rolecall.spec.plan import GangPlan, WorkerPlan
from rolecall.spec.role import Role
from rolecall.spec.state import JobState

from .harness import TOKEN, Client, make_settings, make_token, one_trainer, serving

NOW = datetime.now(UTC)


SUCCEEDED = (JobState.RUNNING, JobState.SUCCEEDED)
FAILED = (JobState.RUNNING, JobState.STOPPING, JobState.FAILED)


async def examined(
    client: Client,
    name: str,
    nodes: Sequence[str],
    path: Sequence[JobState] = SUCCEEDED,
    *,
    owner: str = ADMIN,
    claimed: Sequence[str] = (),
) -> None:
    """Store an examination of `nodes` that took this path through the states after its placement.

    It found something about each node, and about those in `claimed`, on which it has no worker.
    """
    found = [{"nodes": [node], "check": "name", "level": "ok", "message": name} for node in (*nodes, *claimed)]
    plan = GangPlan(
        workers=tuple(
            WorkerPlan(rank=rank, role=Role.TRAINER, role_rank=rank, node=node, threads=1)
            for rank, node in enumerate(nodes)
        )
    )
    async with client.master.database.write() as connection:
        job = await jobs.add(connection, JobSpec(id=name, workload="preflight"), NOW, owner)
        await attempts.begin(connection, job, plan, None, NOW)
        for state in path:
            job = await jobs.get(connection, name)
            await jobs.move(connection, job, state, NOW, "", result={"findings": found})


async def shown_to(client: Client, token: str) -> dict[str, Any] | None:
    """The examination of `trainer-0` that this token sees."""
    return (await client.call(token, "GET", "/nodes/trainer-0/preflight")).json()["network"]


@asynccontextmanager
async def on_master(tmp_path: Path) -> AsyncGenerator[Client]:
    """A fresh master that knows the node `trainer-0`."""
    async with serving(make_settings(tmp_path)) as client:
        await one_trainer(client)
        yield client


async def test_the_newest_that_names_the_node_is_shown_and_no_older_one_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with on_master(tmp_path) as client:
        await examined(client, "oldest", ["trainer-0"])
        await examined(client, "right", ["trainer-0", "trainer-1"])
        await examined(client, "of-others", ["trainer-1"])
        await examined(client, "failed", ["trainer-0"], FAILED)
        read: list[str] = []
        get = jobs.get

        async def noted(connection: Any, job: str) -> JobRecord:
            read.append(job)
            return await get(connection, job)

        monkeypatch.setattr(jobs, "get", noted)
        shown = (await client.user("GET", "/nodes/trainer-0/preflight")).json()["network"]
        assert shown["job"] == "right"
        assert [finding["nodes"] for finding in shown["findings"]] == [["trainer-0"]]
        assert 0 <= shown["age_s"] <= (datetime.now(UTC) - NOW).total_seconds() + 0.1
        assert read == ["right"]


async def test_a_node_that_no_examination_reached_has_none(tmp_path: Path) -> None:
    async with on_master(tmp_path) as client:
        await examined(client, "of-others", ["trainer-1"], claimed=["trainer-0"])
        assert (await client.user("GET", "/nodes/trainer-0/preflight")).json()["network"] is None


async def test_the_job_of_others_is_not_named(tmp_path: Path) -> None:
    async with on_master(tmp_path) as client:
        await examined(client, "right", ["trainer-0"])
        shown = await shown_to(client, await make_token(client, "alice", Scope.SUBMIT))
        assert shown
        assert shown["job"] is None
        assert shown["findings"]
        reader = await shown_to(client, await make_token(client, "bob", Scope.READ))
        assert reader
        assert reader["job"] == "right"


@pytest.mark.slow
async def test_what_a_user_examined_is_shown_only_to_them_and_hides_nothing(tmp_path: Path) -> None:
    async with on_master(tmp_path) as client:
        operator = await make_token(client, "operator", Scope.ADMIN)
        await examined(client, "right", ["trainer-0"], owner="operator")
        for number in range(25):
            await examined(client, f"own-{number}", ["trainer-0"], owner="mallory")
        tokens = {
            "mallory": await make_token(client, "mallory", Scope.SUBMIT, Scope.READ),
            "alice": await make_token(client, "alice", Scope.SUBMIT),
            "admin": TOKEN,
            "operator": operator,
        }
        shown = {name: await shown_to(client, token) for name, token in tokens.items()}
        messages = {name: one and one["findings"][0]["message"] for name, one in shown.items()}
        assert messages == {"mallory": "own-24", "alice": "right", "admin": "right", "operator": "right"}


@pytest.mark.slow
async def test_findings_that_cant_be_read_are_passed_over(tmp_path: Path) -> None:
    async with on_master(tmp_path) as client:
        await examined(client, "right", ["trainer-0"])
        await examined(client, "damaged", ["trainer-0"])
        async with client.master.database.write() as connection:
            await connection.execute(text("UPDATE jobs SET result = '{\"findings\": 7}' WHERE id = 'damaged'"))
        answer = await client.user("GET", "/nodes/trainer-0/preflight")
        assert answer.status_code == 200
        assert answer.json()["network"]["job"] == "right"
