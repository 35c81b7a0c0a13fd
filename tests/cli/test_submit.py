"""`rolecall submit`: files and stdin, dry runs, and waiting for the end."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.master.harness import ONE_TRAINER, Client, Node, line, on_master, one_trainer

from rolecall.cli.output import err
from rolecall.client import Unreachable
from rolecall.spec.state import WorkerState

from .command import run, run_at

JOB = {"workload": "toy", "roles": ONE_TRAINER, "params": {"steps": 5}}


@pytest.fixture
async def master(tmp_path: Path) -> AsyncIterator[Client]:
    """A master without nodes."""
    async with on_master(tmp_path / "master") as client:
        yield client


async def test_a_dry_run_shows_where_the_workers_would_run_or_what_the_job_would_wait_for(
    master: Client, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("workload: toy\nroles: {parameter-server: 0, trainer: 1}\n")
    waits = await run_at(master, "submit", str(file), "--dry-run")
    assert (waits.code, waits.out.count("\n")) == (0, 2)
    unchecked = "its nodes check files, environments and code of its own when it starts"
    assert waits.out.splitlines()[-1] == unchecked
    assert waits.out.startswith("the job is valid; it would wait: ")
    assert "trainer" in waits.out
    await one_trainer(master)
    plan = await run_at(master, "submit", str(file), "--dry-run")
    assert plan.out.splitlines()[-2].split()[:3] == ["0", "trainer-0", "trainer-0"]
    assert plan.out.splitlines()[-1] == unchecked
    plan = await run_at(master, "submit", "-", "--set", "params.steps=7", "--dry-run", "--json", given=json.dumps(JOB))
    assert json.loads(plan.out)["params"]["steps"] == 7
    refused = await run_at(master, "submit", "-", "--set", "params.step=7", "--dry-run", given="workload: toy")
    assert refused.code == 5
    assert "did you mean 'steps'" in refused.err
    assert (await master.user("GET", "/jobs")).json()["jobs"] == []


async def test_wait_prints_only_the_outcome(master: Client) -> None:
    node = await one_trainer(master)
    waiting = asyncio.ensure_future(run_at(master, "submit", "-", "--wait", given=json.dumps(JOB)))
    (worker,) = await node.workers()
    await node.say(worker, WorkerState.RUNNING)
    await node.progress(worker, line("result", metrics={"score": 0.5}))
    await node.say(worker, WorkerState.SUCCEEDED, exit_code=0)
    done = await waiting
    assert (done.code, done.out) == (0, "toy succeeded: score=0.5000\n")
    assert done.err == f"job {worker.launch.job}\n"


async def test_wait_says_what_the_job_waits_for(master: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    printed, print_it = list[str](), err.print

    def record(text: str) -> None:
        print_it(text)
        printed.append(text)

    monkeypatch.setattr(err, "print", record)
    waiting = asyncio.ensure_future(run_at(master, "submit", "-", "--wait", given=json.dumps(JOB)))
    async with asyncio.timeout(20):
        while not any(text.startswith("the job is queued: ") for text in printed):
            await asyncio.sleep(0.05)
    (job,) = (await master.user("GET", "/jobs")).json()["jobs"]
    await master.user("POST", f"/jobs/{job['id']}/cancel")
    done = await waiting
    assert done.err.count("the job is queued: ") == 1


async def test_wait_has_the_exit_code_of_the_outcome(master: Client) -> None:
    node: Node = await one_trainer(master)
    waiting = asyncio.ensure_future(run_at(master, "submit", "-", "--wait", "--json", given=json.dumps(JOB)))
    (worker,) = await node.workers()
    await master.user("POST", f"/jobs/{worker.launch.job}/cancel")
    await node.say(worker, WorkerState.STOPPED, exit_code=0)
    done = await waiting
    assert (done.code, json.loads(done.out)["state"]) == (3, "cancelled")


async def test_a_job_that_stays_queued_is_submitted_with_the_reason(master: Client) -> None:
    done = await run_at(master, "submit", "-", given=json.dumps(JOB | {"roles": {"trainer": 9}}))
    assert (done.code, done.out) == (0, f"{(await master.user('GET', '/jobs')).json()['jobs'][0]['id']}\n")
    assert done.err.startswith("the job is queued: ")
    assert "9 trainer" in done.err
    await one_trainer(master)
    placed = await run_at(master, "submit", "-", given=json.dumps(JOB))
    assert (placed.code, placed.err) == (0, "")


async def test_a_submitted_job_has_an_id_even_if_the_master_then_answers_no_more(
    master: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(self: object, job: str, timeout_s: float) -> None:
        raise Unreachable("no master answers")

    monkeypatch.setattr("rolecall.client.Client.job", unreachable)
    done = await run_at(master, "submit", "-", given=json.dumps(JOB))
    assert (done.code, done.out.strip() != "", done.err) == (0, True, "")


@pytest.mark.slow
async def test_a_submitted_job_has_an_id_soon_even_if_the_master_hangs(
    master: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*_: object) -> None:
        await asyncio.sleep(20)

    monkeypatch.setattr("rolecall.master.api.jobs.job_document_of", hang)
    begin = time.monotonic()
    done = await run_at(master, "submit", "-", given=json.dumps(JOB))
    assert (done.code, done.out.strip() != "", done.err) == (0, True, "")
    assert time.monotonic() - begin < 10


def test_a_dry_run_has_no_job_to_wait_for() -> None:
    done = run("submit", "-", "--dry-run", "--wait", given="{}")
    assert (done.code, "omit --follow and --wait" in done.err) == (2, True)
