"""The audit log: changes are in it before they are answered, refusals in bounded numbers."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from tests.running import accepted

from rolecall.master import refusals
from rolecall.master.refusals import Refusal, Refusals
from rolecall.master.store import audit
from rolecall.spec.access import AuditEntry, Scope

from .harness import Client, ManualClock, make_token, on_master, submit_as


async def log(client: Client, count: int, **params: Any) -> list[AuditEntry]:
    """The audit log, oldest first, once it has `count` entries."""
    async with asyncio.timeout(10):
        while True:
            answer = await client.user("GET", "/audit", params=params)
            entries = [AuditEntry.model_validate(entry) for entry in answer.json()["entries"]]
            if len(entries) >= count:
                return entries[::-1]
            await asyncio.sleep(0.1)


@pytest.mark.slow
async def test_the_audit_log_has_changes_and_refusals(client: Client) -> None:
    alice = await make_token(client, "alice", Scope.SUBMIT)
    job = accepted(await submit_as(client, alice))["id"]
    await client.call(alice, "POST", f"/jobs/{job}/cancel")
    changes = await log(client, 3)
    assert [(one.token, one.action, one.target, one.outcome) for one in changes] == [
        ("admin", "POST /tokens", "alice", 201),
        ("alice", "POST /jobs", job, 201),
        ("alice", "POST /jobs/{job}/cancel", job, 200),
    ]
    assert {one.address for one in changes} == {"127.0.0.1"}
    await client.call(alice, "POST", f"/jobs/{job}/cancel")
    await client.call(alice, "GET", "/audit")
    for _ in range(5):
        await client.call("rc_guess", "GET", "/jobs")
    refused = (await log(client, 6))[len(changes) :]
    said = Counter({(one.token, one.action, one.outcome): one.count for one in refused})
    assert said[None, "GET /jobs", 401] >= 1
    assert said["alice", "POST /jobs/{job}/cancel", 409] == 1
    assert said["alice", "GET /audit", 403] == 1
    ids = [one.id for one in await log(client, 6)]
    assert [one.id for one in await log(client, 3, since=min(one.at for one in refused).isoformat())] == ids[3:]
    pages, listed = list[int](), list[int]()
    params: dict[str, Any] = {"limit": 2}
    while "cursor" not in params or params["cursor"]:
        page = (await client.user("GET", "/audit", params=params)).json()
        listed += [one["id"] for one in page["entries"]]
        pages.append(len(page["entries"]))
        params["cursor"] = page["next_cursor"]
    assert set(pages[:-1]) == {2}, "every page but the last one is full"
    assert listed[-len(ids) :] == ids[::-1]
    async with client.master.database.write() as connection:
        assert await audit.prune(connection, changes[1].at) == 1
    assert (await log(client, 1))[0].id == changes[1].id


def test_a_flood_of_refusals_is_a_few_entries() -> None:
    clock = ManualClock()
    log = Refusals(clock)
    entries: list[AuditEntry] = []
    for number in range(20_000):
        clock.advance(0.01)
        log.note(Refusal(None, f"10.0.{number % 256}.{number % 250}", "GET /jobs", "", 401))
        if number % 100 == 0:
            entries += log.take()
    for _ in range(3):
        clock.advance(refusals.WINDOW_S)
        entries += log.take()
    assert len(entries) <= refusals.MAX_PER_WINDOW * (clock.monotonic() / refusals.WINDOW_S + 1)
    assert sum(entry.count for entry in entries) == 20_000


def test_a_flood_by_one_token_hides_no_call_of_another() -> None:
    clock = ManualClock()
    log = Refusals(clock)
    for number in range(500):
        log.note(Refusal("mallory", "10.0.0.1", "GET /jobs/{job}", f"job-{number}", 404))
    log.note(Refusal("mallory", "10.0.0.1", "GET /audit", "", 403))
    log.note(Refusal("eve", "10.0.0.2", "POST /tokens", "", 403))
    log.restore(log.take())
    found: list[AuditEntry] = []
    for _ in range(2):
        clock.advance(refusals.WINDOW_S)
        found += log.take()
    entries = {(one.token, one.action): one.count for one in found}
    assert entries["mallory", "GET /audit"] == 1
    assert entries["eve", "POST /tokens"] == 1


@pytest.mark.slow
async def test_a_target_with_control_characters_is_written_visibly(tmp_path: Path, database_url: str) -> None:
    """Also to PostgreSQL, which refuses NUL and every other entry with it."""

    async with on_master(tmp_path, database_url=SecretStr(database_url)) as client:
        alice = await make_token(client, "alice", Scope.READ)
        for path in ("/jobs/%00/cancel", "/jobs/%1b%5D0;x%07%0Ay/cancel"):
            assert (await client.call(alice, "POST", path)).status_code == 403
        assert (await client.call(alice, "GET", "/audit")).status_code == 403
        found = {(one.action, one.target) for one in await log(client, 4)}
        assert {("POST /jobs/{job}/cancel", r"\x00"), ("POST /jobs/{job}/cancel", r"\x1b]0;x\x07\ny")} <= found
        assert any(action == "GET /audit" for action, _ in found)
