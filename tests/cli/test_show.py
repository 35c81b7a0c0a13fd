"""`rolecall show`: facts, attempts with their workers, and the newest checkpoints and events."""

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from tests.master import harness
from tests.master.harness import ONE_TRAINER, TOY, Client, failure, line, on_master, one_trainer

from rolecall.cli import output
from rolecall.cli.output import Terminal
from rolecall.master.catalogue import Catalogue
from rolecall.master.store import events
from rolecall.spec.state import WorkerState

from .command import run_at


@pytest.fixture
async def master(tmp_path: Path) -> AsyncIterator[Client]:
    """A master without nodes."""
    async with on_master(tmp_path / "master") as client:
        yield client


async def facts_of(master: Client, job: str) -> dict[str, str]:
    """The first block of the output: each fact by its name."""
    shown = (await run_at(master, "show", job)).out
    return dict(text.split(maxsplit=1) for text in shown.partition("\n\n")[0].splitlines())


async def test_a_queued_job_has_its_owner_labels_and_reason_to_wait_but_no_empty_facts(master: Client) -> None:
    roles = {"parameter-server": {"count": 0}, "trainer": {"count": 2, "threads": 1}}
    job = (await master.submit(roles=roles, labels={"team": "ads", "note": ""}))["id"]
    await master.until(job, "queued", also=lambda one: one["waiting_for"])
    facts = await facts_of(master, job)
    assert facts.pop("submitted").endswith("s ago")
    assert facts.pop("waits").startswith("waiting for 2 trainer slots with 1 thread: the cluster has 0 in total")
    labels = set(facts.pop("labels").split(", "))
    assert labels == {"team=ads", "note="}
    assert facts == {
        "job": job,
        "workload": "toy (2 trainers with 1 thread)",
        "owner": "admin",
        "state": "queued",
    }


async def test_only_a_running_job_has_a_speed(master: Client) -> None:
    node = await one_trainer(master)
    job = (await master.submit(roles=ONE_TRAINER))["id"]
    (worker,) = await node.workers()
    await node.say(worker, WorkerState.RUNNING)
    await node.progress(worker, line("step", step=3, steps=30, samples=500, samples_per_s=50.0, metrics={"loss": 0.5}))
    await master.until(job, "running", also=lambda one: one["progress"]["samples_per_s"])
    running = await facts_of(master, job)
    assert running["progress"].startswith("step 3/30, loss 0.5000, ")
    assert running["progress"].endswith(" samples/s")
    await node.say(worker, WorkerState.SUCCEEDED, exit_code=0)
    await master.until(job, "succeeded")
    assert (await facts_of(master, job))["progress"] == "step 3/30, loss 0.5000"


async def test_scores_are_the_metrics_with_a_direction_and_those_without_a_declaration(master: Client) -> None:
    node = await one_trainer(master)
    job = (await master.submit(roles=ONE_TRAINER))["id"]
    (worker,) = await node.workers()
    await node.say(worker, WorkerState.RUNNING)
    reported = {"loss": 0.5, "trainer_0_loss": 0.25, "trainer_1_loss": 0.75, "validation_auc": 0.9, "own": 2.0}
    await node.progress(worker, line("step", step=3, steps=30, metrics=reported))
    await master.until(job, "running", also=lambda one: one["progress"]["metrics"])
    assert (await facts_of(master, job))["scores"] == "validation_auc=0.9000 own=2"
    assert "trainer_1_loss" in (await run_at(master, "metrics", job)).out


async def test_each_attempt_has_its_cause_and_the_failures_of_its_workers(master: Client) -> None:
    node = await one_trainer(master)
    job = (await master.submit(roles=ONE_TRAINER, max_restarts=1))["id"]
    (worker,) = await node.workers()
    await node.say(worker, WorkerState.FAILED, failure=failure("OSError: the disk [sda] is full"), exit_code=1)
    await master.until(job, "placed", also=lambda one: one["attempt"] == 2)
    shown = (await run_at(master, "show", job)).out
    first, second = (block.splitlines() for block in shown.split("\n\n") if block.startswith("attempt "))
    assert first[0] == "attempt 1 failed: trainer-0 on trainer-0: OSError: the disk [sda] is full"
    assert first[1].split() == ["RANK", "WORKER", "NODE", "PID", "STATE", "FAILURE"]
    row = first[2].split(maxsplit=5)
    assert row == ["0", "trainer-0", "trainer-0", "100", "failed", "OSError: the disk [sda] is full"]
    assert second[0].startswith("attempt 2 placed")
    assert second[2].split() == ["0", "trainer-0", "trainer-0", "assigned"]


async def test_a_narrow_terminal_shortens_the_failure_of_a_worker_but_not_the_cause(
    master: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await one_trainer(master)
    job = (await master.submit(roles=ONE_TRAINER, max_restarts=0))["id"]
    (worker,) = await node.workers()
    reason = f"InputError: {'long ' * 30}end"
    await node.say(worker, WorkerState.FAILED, failure=failure(reason), exit_code=1)
    await master.until(job, "failed")
    sent = StringIO()
    for module in ("output", "show", "events"):
        monkeypatch.setattr(
            f"rolecall.cli.{module}.out", Terminal(file=sent, highlight=False, soft_wrap=True, width=60)
        )
    assert output.out.is_bounded
    assert (await run_at(master, "show", job)).code == 0
    table = sent.getvalue().partition("\nattempt 1 ")[2].splitlines()
    assert table[0].endswith(f": {reason}")
    assert table[1].split() == ["RANK", "WORKER", "NODE", "STATE", "FAILURE"]
    assert table[2].rstrip().endswith("…")
    assert max(map(len, table[1:3])) <= 60


async def test_long_lists_are_cut_and_name_the_command_that_shows_all(tmp_path: Path) -> None:
    async with on_master(tmp_path, keep_checkpoints=4) as master:
        node = await one_trainer(master)
        job = (await master.submit(roles=ONE_TRAINER))["id"]
        await node.workers()
        for step in range(1, 5):
            await master.checkpoint(job, 1, step)
        async with master.master.database.write() as connection:
            for number in range(12):
                await events.add(connection, job, master.master.clock.now(), "note", f"event {number}")
        shown = (await run_at(master, "show", job)).out
    title, _, *rows = shown.partition("\ncheckpoints")[2].partition("\n\n")[0].splitlines()
    assert title == f" (the last 3 of 4; all: rolecall checkpoints {job})"
    assert [text.split()[0] for text in rows] == ["4", "3", "2"]
    title, *rows = shown.partition("\nevents")[2].splitlines()
    assert re.fullmatch(rf" \(the last 10 of \d+; all: rolecall events {job}\)", title)
    assert [text.rpartition(" event ")[2] for text in rows] == [str(number) for number in range(2, 12)]


async def test_a_job_whose_workload_was_removed_shows_all_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(TOY, name="other")
    with monkeypatch.context() as installed:
        installed.setattr(harness, "CATALOGUE", Catalogue({"toy": TOY, "other": other}))
        async with on_master(tmp_path) as master:
            job = (await master.submit(workload="other", params={"steps": 7}))["id"]
            chosen = (await run_at(master, "show", job)).out
    async with on_master(tmp_path) as master:
        everything = (await run_at(master, "show", job)).out
    assert ("  steps  " in chosen, "learning_rate" in chosen) == (True, False)
    assert ("  steps  " in everything, "learning_rate" in everything) == (True, True)
