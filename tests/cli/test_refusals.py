# pyright: standard
"""The command's errors about requests that the master refuses: in the words of the command, not of HTTP."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from tests.master.harness import CATALOGUE, TOKEN, Client, on_master

from rolecall.client.connection import Connection, announced
from rolecall.master.catalogue import check_params
from rolecall.workloads.catalogue import load

from .command import run, run_at


@pytest.fixture
async def master(tmp_path: Path) -> AsyncIterator[Client]:
    """A master without nodes."""
    async with on_master(tmp_path / "master") as client:
        yield client


async def test_unknown_names_are_listed_by_a_command(master: Client) -> None:
    shown = (await run_at(master, "show", "x")).err
    assert "there is no job 'x'; `rolecall jobs` lists them (asked the master at http://" in shown
    refused = await run_at(master, "tokens", "revoke", "nobody")
    assert "there is no token 'nobody'; `rolecall tokens list` lists them" in refused.err


def test_params_that_look_like_nothing_are_described_by_a_command() -> None:
    _, field_errors = check_params(load("embedding-ddp"), {f"p{number}": 1 for number in range(1000)})
    assert [one["legal"] for one in field_errors] == ["what `rolecall workloads embedding-ddp` shows"]


async def test_a_state_is_shown_in_english(master: Client) -> None:
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
    said = (await run_at(master, "submit", "-", given='{"workload": "toy", "priority": 101}')).err
    assert "priority: " in said
    assert "(given: 101; valid: " in said
    said = (await run_at(master, "submit", "-", given='{"workload": "toi"}')).err
    assert "there is no workload 'toi'; did you mean 'toy'?" in said
    assert "given:" not in said, "the message has it"


async def test_a_refused_token_is_named_by_its_place_and_never_shown(
    master: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    url, wrong = str(master.http.base_url), "a-token-of-another-cluster"
    (tmp_path / "token").write_text(wrong)
    nothing = {"ROLECALL_URL": url, "ROLECALL_TOKEN": "", "ROLECALL_TOKEN_FILE": ""}
    with announced(Connection(url, wrong)) as path:
        for place, options, environment in (
            ("--token", ["--token", wrong], {"ROLECALL_TOKEN": TOKEN}),
            ("ROLECALL_TOKEN", [], {"ROLECALL_TOKEN": wrong}),
            (f"ROLECALL_TOKEN_FILE={tmp_path}/token", [], {"ROLECALL_TOKEN_FILE": f"{tmp_path}/token"}),
            (str(path), [], {}),
        ):
            given = nothing | environment
            done = await asyncio.to_thread(lambda options=options, given=given: run("jobs", *options, **given))
            assert done.code == 7
            assert (
                f"{url} does not accept the token from {place}; pass a token of this cluster, or set ROLECALL_TOKEN"
                in done.err
            )
            assert wrong not in done.err


async def test_a_token_without_the_scope_is_named_by_its_place(master: Client) -> None:
    body = {"name": "reader", "scopes": ["read"]}
    secret = (await master.user("POST", "/tokens", json=body)).json()["secret"]
    given = {"ROLECALL_URL": str(master.http.base_url), "ROLECALL_TOKEN": secret}
    done = await asyncio.to_thread(lambda: run("tokens", "list", **given))
    assert done.code == 7
    assert "needs the scope admin; the token reader has read (this token is from ROLECALL_TOKEN; pass" in done.err


def test_a_master_that_does_not_listen_yet_or_stands_by_gets_another_try() -> None:
    given = {"ROLECALL_TOKEN": TOKEN, "ROLECALL_URL": "http://127.0.0.1:9"}
    said = run("jobs", **given).err
    assert "no master answers at http://127.0.0.1:9 (" in said
    assert "if it is starting, try again in a moment; otherwise start one with `rolecall local`" in said


async def test_an_unknown_workload_is_an_error_with_the_nearest_name(
    master: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await run_at(master, "jobs", "--workload", "toy")).code == 0, "it is installed, and has no jobs"
    refused = await run_at(master, "jobs", "--workload", "tyo")
    assert (refused.code, "there is no workload 'tyo'; did you mean 'toy'?" in refused.err) == (5, True)
    job = (await master.submit())["id"]
    monkeypatch.delitem(cast(dict[str, Any], CATALOGUE.workloads), "toy")
    assert job in (await run_at(master, "jobs", "--workload", "toy")).out, "its package is no longer installed"
    assert (await run_at(master, "jobs", "--workload", "sad")).code == 0, "it is installed but broken, and has no jobs"
    refused = await run_at(master, "jobs", "--workload", "sda")
    assert (refused.code, "there is no workload 'sda'; did you mean 'sad'?" in refused.err) == (5, True)
