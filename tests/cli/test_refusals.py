"""What the command says about requests that the master refuses: in the words of the command, not of HTTP."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.master.harness import Client, on_master

from rolecall.master.catalogue import check_params
from rolecall.workloads.catalogue import load

from .command import run, run_at


@pytest.fixture
async def master(tmp_path: Path) -> AsyncIterator[Client]:
    """A master without nodes."""
    async with on_master(tmp_path / "master") as client:
        yield client


async def test_unknown_names_are_listed_by_a_command(master: Client) -> None:
    assert "there is no job 'x'; `rolecall jobs` lists them" in (await run_at(master, "show", "x")).err
    refused = await run_at(master, "tokens", "revoke", "nobody")
    assert "there is no token 'nobody'; `rolecall tokens list` lists them" in refused.err


def test_params_that_look_like_nothing_are_described_by_a_command() -> None:
    _, problems = check_params(load("embedding-ddp"), {f"p{number}": 1 for number in range(1000)})
    assert [one["legal"] for one in problems] == ["what `rolecall workloads embedding-ddp` shows"]


async def test_a_state_is_told_in_english(master: Client) -> None:
    job = (await master.submit())["id"]
    assert "it is queued" in (await run_at(master, "stacks", job)).err
    await run_at(master, "cancel", job)
    assert "it was cancelled" in (await run_at(master, "stacks", job)).err
    assert f"job {job} was cancelled; only a paused job can be resumed" in (await run_at(master, "resume", job)).err


async def test_a_declined_deletion_says_that_nothing_is_deleted(master: Client) -> None:
    job = (await master.submit())["id"]
    await run_at(master, "cancel", job)
    declined = await run_at(master, "prune", "--older-than", "0s", given="n\n")
    assert declined.code == 1
    assert declined.err.endswith("Nothing deleted.\n")
    assert (await run_at(master, "show", job)).code == 0


def test_what_is_no_job_gets_the_command_that_prints_one() -> None:
    assert "`rolecall workloads NAME --example` prints one" in run("submit", "-", given="[]").err


async def test_a_wrong_value_is_shown_with_the_legal_ones(master: Client) -> None:
    job = (await master.submit())["id"]
    said = (await run_at(master, "update", job, "--priority", "101")).err
    assert "priority: " in said
    assert "(given: 101; legal: " in said
    said = (await run_at(master, "submit", "-", given='{"workload": "toi"}')).err
    assert "there is no workload 'toi'" in said
    assert "given:" not in said, "the message has it"
