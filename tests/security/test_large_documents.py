# pyright: standard
"""Documents that grow with what jobs send: many attempts, long tracebacks, large parameters."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from tests.master.harness import failure, make_settings, on_master, serving

from rolecall.client import Client as CliClient
from rolecall.client.connection import Connection
from rolecall.master.store import attempts, jobs, workers
from rolecall.master.store.database import Database
from rolecall.master.store.schema import jobs as job_table
from rolecall.master.store.schema import workers as worker_table
from rolecall.spec.job import Progress
from rolecall.spec.plan import GangPlan, WorkerPlan
from rolecall.spec.report import Failure
from rolecall.spec.role import Role
from rolecall.spec.state import JobState, WorkerState

LONG = failure("x" * 4000, traceback="y" * 32_000)
PLAN = GangPlan(workers=(WorkerPlan(rank=0, role=Role.TRAINER, role_rank=0, node="trainer-0", threads=1),))


async def fail_often(database: Database, job: str, count: int) -> None:
    """Let a queued job fail `count` times, with `LONG`."""
    for _ in range(count):
        async with database.write() as connection:
            await attempts.begin(connection, await jobs.get(connection, job), PLAN, None, datetime.now(UTC))
            gang = await attempts.gang(connection, await jobs.get(connection, job))
            await workers.end_all(connection, gang.workers, WorkerState.FAILED, failure=LONG)
            await connection.execute(update(job_table).where(job_table.c.id == job).values(state=JobState.QUEUED))
            await attempts.follow(connection, gang, JobState.FAILED, cause=f"trainer-0: {LONG.message}")


@pytest.mark.slow
async def test_a_job_with_many_attempts_has_a_document_of_bounded_size(tmp_path: Path) -> None:
    async with on_master(tmp_path) as client:
        job = (await client.submit())["id"]
        await fail_often(client.master.database, job, 30)
        tries = (await client.job(job))["attempts"]
        assert [one["number"] for one in tries] == list(range(1, 31))
        assert [len(one["workers"]) for one in tries] == [0] * 10 + [1] * 20
        assert all(len(one["cause"]) < 300 for one in tries[:10])
        failures = [one["workers"][0]["failure"] for one in tries[10:]]
        assert [bool(one["traceback"]) for one in failures] == [False] * 17 + [True] * 3
        assert all(one["message"].startswith("xxx") and len(one["message"]) < 300 for one in failures[:17])
        async with client.master.database.read() as connection:
            stored = list(await connection.scalars(select(worker_table.c.failure)))
        assert sum(isinstance(one, Failure) and bool(one.traceback) for one in stored) == 3


async def test_a_page_has_nothing_of_large_jobs_and_the_command_line_asks_for_the_next(tmp_path: Path) -> None:
    large = {"text": "z" * 1_500_000}

    async with serving(make_settings(tmp_path)) as client:
        made = [(await client.submit())["id"] for _ in range(6)]
        async with client.master.database.write() as connection:
            await connection.execute(update(job_table).values(result=large, reason=large["text"]))
        answer = await client.user("GET", "/jobs?limit=5")
        assert [job["id"] for job in answer.json()["jobs"]] == made[:0:-1]
        assert answer.json()["next_cursor"] is not None
        assert len(answer.content) < 10_000
        for limit, many in ((50, 6), (5, 5)):
            listed = await asyncio.to_thread(listed_by_command, str(client.http.base_url), limit)
            assert listed == made[::-1][:many]


async def test_a_comparison_shows_the_beginnings_of_large_values(tmp_path: Path) -> None:
    async with serving(make_settings(tmp_path)) as client:
        made = [(await client.submit())["id"] for _ in range(2)]
        async with client.master.database.write() as connection:
            for number, job in enumerate(made):
                large = update(job_table).where(job_table.c.id == job).values(params={"text": f"{number}" * 1_500_000})
                await connection.execute(large)
        page = (await client.user("GET", f"/ui/compare?job={made[0]}&job={made[1]}")).text
        assert "0" * 100 in page
        assert "1" * 100 in page
        assert len(page) < 50_000


async def test_a_page_ends_before_newer_progress_makes_it_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with on_master(tmp_path) as client:
        made = [(await client.submit())["id"] for _ in range(5)]
        newest = Progress(metrics={"x" * 1_500_000: 1.0})
        monkeypatch.setattr(client.master.progress, "of_job", lambda *_: newest)
        seen: list[list[str]] = []
        cursor: dict[str, str] = {}
        while not seen or cursor:
            answer = await client.user("GET", "/jobs", params=cursor)
            assert len(answer.content) < 4 << 20
            seen.append([job["id"] for job in answer.json()["jobs"]])
            cursor = {"cursor": answer.json()["next_cursor"]} if answer.json()["next_cursor"] else {}
        assert seen == [made[:2:-1], made[2:0:-1], made[:1]]


def listed_by_command(url: str, limit: int) -> list[Any]:
    """The ids that `rolecall jobs` shows, which it also has for `--json`."""
    with CliClient(Connection(url=url, token="user-token-of-the-tests")) as client:
        found = [job.id for job in client.jobs(limit)]
        assert [job["id"] for job in client.raw["jobs"]] == found
        return found
