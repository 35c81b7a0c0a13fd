"""What `GET /nodes/{node}/preflight` reads of the examinations there were: each may be large."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from rolecall.master.store import jobs
from rolecall.master.store.records import JobRecord
from rolecall.spec.access import Scope
from rolecall.spec.job import JobSpec
from rolecall.spec.state import JobState

from .harness import Client, make_settings, make_token, one_trainer, serving

NOW = datetime.now(UTC)


async def examined(client: Client, name: str, nodes: Sequence[str], *path: JobState) -> None:
    """Store an examination that found something about each of `nodes`, and took this path through the states."""
    found = [{"nodes": [node], "check": "name", "level": "ok", "message": name} for node in nodes]
    async with client.master.database.write() as connection:
        job = await jobs.add(connection, JobSpec(id=name, workload="preflight"), NOW)
        for state in path:
            await jobs.move(connection, job, state, NOW, "", result={"findings": found})
            job = await jobs.get(connection, name)


SUCCEEDED = (JobState.PLACED, JobState.RUNNING, JobState.SUCCEEDED)
FAILED = (JobState.PLACED, JobState.RUNNING, JobState.STOPPING, JobState.FAILED)


@asynccontextmanager
async def on_master(tmp_path: Path) -> AsyncIterator[Client]:
    """A fresh master that knows the node `trainer-0`."""
    async with serving(make_settings(tmp_path)) as client:
        await one_trainer(client)
        yield client


async def test_the_newest_that_names_the_node_is_shown_and_no_older_one_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with on_master(tmp_path) as client:
        await examined(client, "oldest", ["trainer-0"], *SUCCEEDED)
        await examined(client, "right", ["trainer-0", "trainer-1"], *SUCCEEDED)
        await examined(client, "of-others", ["trainer-1"], *SUCCEEDED)
        await examined(client, "failed", ["trainer-0"], *FAILED)
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
        assert read == ["of-others", "right"]


async def test_a_node_that_no_examination_names_has_none(tmp_path: Path) -> None:
    async with on_master(tmp_path) as client:
        await examined(client, "of-others", ["trainer-1"], *SUCCEEDED)
        assert (await client.user("GET", "/nodes/trainer-0/preflight")).json()["network"] is None


async def test_the_job_of_others_is_not_named(tmp_path: Path) -> None:
    async with on_master(tmp_path) as client:
        await examined(client, "right", ["trainer-0"], *SUCCEEDED)
        token = await make_token(client, "alice", Scope.SUBMIT)
        shown = (await client.call(token, "GET", "/nodes/trainer-0/preflight")).json()["network"]
        assert shown["job"] is None
        assert shown["findings"]
        reader = await make_token(client, "bob", Scope.READ)
        assert (await client.call(reader, "GET", "/nodes/trainer-0/preflight")).json()["network"]["job"] == "right"


@pytest.mark.slow
async def test_findings_that_cant_be_read_are_passed_over(tmp_path: Path) -> None:
    async with on_master(tmp_path) as client:
        await examined(client, "right", ["trainer-0"], *SUCCEEDED)
        await examined(client, "damaged", ["trainer-0"], *SUCCEEDED)
        async with client.master.database.write() as connection:
            await connection.execute(text("UPDATE jobs SET result = '{\"findings\": 7}' WHERE id = 'damaged'"))
        answer = await client.user("GET", "/nodes/trainer-0/preflight")
        assert answer.status_code == 200
        assert answer.json()["network"]["job"] == "right"
