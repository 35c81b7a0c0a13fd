"""`rolecall update`, the lists that its changes select, and control of jobs, with a master of the harness."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.master.harness import ONE_TRAINER, Client, on_master, one_trainer

from rolecall.spec.state import WorkerState

from .command import run, run_at


@pytest.fixture
async def master(tmp_path: Path) -> AsyncIterator[Client]:
    async with on_master(tmp_path / "master") as client:
        yield client


async def listed(master: Client, *options: str) -> list[str]:
    """The ids of the jobs that the command lists with these options."""
    done = await run_at(master, "jobs", *options)
    assert done.code == 0, done.err
    return [row.split()[0] for row in done.out.splitlines()[1:]]


async def test_changes_are_shown_and_select_jobs(master: Client) -> None:
    other, job = [(await master.submit(roles=ONE_TRAINER))["id"] for _ in range(2)]
    done = await run_at(
        master,
        "update",
        job,
        "--name",
        "fine tuning",
        "--priority",
        "-3",
        "--label",
        "team=speech",
        "--label",
        "draft=",
    )
    assert done.out == f"job {job}: name 'fine tuning', priority -3, labels draft=, team=speech\n"
    for options in (("--name", "tuning"), ("--label", "team=speech"), ("--label", "draft")):
        assert await listed(master, *options) == [job], options
    assert await listed(master, "--label", "team=vision") == []
    assert await listed(master, "--workload", "toy") == [job, other]
    done = await run_at(master, "update", job, "--remove-label", "draft")
    assert done.out == f"job {job}: name 'fine tuning', priority -3, labels team=speech\n"


async def test_a_change_that_is_not_legal_is_refused_with_the_fields_name(master: Client) -> None:
    job = (await master.submit(roles=ONE_TRAINER))["id"]
    done = await run_at(master, "update", job, "--name", "x" * 121)
    assert done.code == 5
    assert "name: it must have at most 120 characters, not " in done.err


@pytest.mark.parametrize(
    ("options", "said"),
    [((), "nothing to change; use --name"), (("--label", "team"), "use KEY=VALUE, or --remove-label team")],
)
def test_what_changes_nothing_is_a_usage_error(options: tuple[str, ...], said: str) -> None:
    done = run("update", "toy-1", *options)
    assert done.code == 2
    assert said in done.err


async def test_a_pause_can_be_taken_back_until_the_job_is_paused(master: Client) -> None:
    node = await one_trainer(master)
    job = (await master.submit(roles=ONE_TRAINER))["id"]
    (worker,) = await node.workers()
    await node.say(worker, WorkerState.RUNNING)
    assert (await run_at(master, "pause", job)).out == f"job {job} is stopping (paused by admin)\n"
    for _ in range(2):
        assert (await run_at(master, "resume", job)).out == f"job {job} is stopping (resumed by admin)\n"
    await run_at(master, "cancel", job)
    refused = await run_at(master, "resume", job)
    assert (refused.code, "only a paused job can be resumed" in refused.err) == (5, True)
