"""Nodes that register, report findings and ask about the cluster, and what users see of them."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall import __version__
from rolecall.master.store.database import Database
from rolecall.spec.access import Scope
from rolecall.spec.finding import Finding, Level
from rolecall.spec.role import Role
from rolecall.spec.state import WorkerState
from rolecall.spec.token import digest_of
from rolecall.spec.wire import ClusterInfo

from .harness import ONE_TRAINER, Client, ManualClock, Node, make_node, make_token, on_master, one_trainer
from .test_api import check_problem

SLOW_CLOCK = Finding(
    check="clock", level=Level.ERROR, message="its clock is 41 s behind the master's", remedy="use NTP"
)


async def test_findings_of_a_node_are_shown_and_keep_workers_away_until_they_are_fixed(client: Client) -> None:
    node = await one_trainer(client)
    node.findings = (SLOW_CLOCK,)
    await node.beat()
    (shown,) = (await client.user("GET", "/nodes")).json()["nodes"]
    assert shown["findings"] == [SLOW_CLOCK.model_dump(mode="json")]
    job = (await client.submit(roles=ONE_TRAINER))["id"]
    waits = await client.until(job, "queued", also=lambda document: document["waiting_for"])
    assert waits["waiting_for"] == (
        "waiting for 1 trainer slot: 0 of 2 are free; trainer-0 takes none: its clock is 41 s behind the master's"
    )
    node.findings = ()
    await node.workers()


async def test_a_node_is_placed_on_once_it_has_said_how_it_is(client: Client) -> None:
    node = Node(client, make_node("trainer-0", Role.TRAINER))
    assert (await node.register()).is_success
    (shown,) = (await client.user("GET", "/nodes")).json()["nodes"]
    assert not shown["alive"]
    await node.beat()
    (shown,) = (await client.user("GET", "/nodes")).json()["nodes"]
    assert shown["alive"]


async def test_a_node_asks_about_the_cluster(client: Client) -> None:
    await one_trainer(client)
    await one_trainer(client, "trainer-1")
    await one_trainer(client, "trainer-2", boot="m1")
    before = time.time()
    seen = ClusterInfo.model_validate((await client.internal("GET", "/nodes/trainer-0/surroundings")).json())
    assert (seen.version, seen.remote_nodes) == (__version__, 1)
    assert before <= seen.time_s <= time.time()
    check_problem(await client.internal("GET", "/nodes/none/surroundings"), 404)


async def test_a_node_gets_the_digests_of_the_tokens_for_prometheus(client: Client) -> None:
    await one_trainer(client)
    secret = await make_token(client, "prometheus", Scope.METRICS)
    await make_token(client, "alice", Scope.READ)
    # A token with more rights must not be configured where nodes are scraped over plain HTTP.
    await make_token(client, "both", Scope.READ, Scope.METRICS)
    seen = ClusterInfo.model_validate((await client.internal("GET", "/nodes/trainer-0/surroundings")).json())
    assert [token.digest for token in seen.scrape_tokens] == [digest_of(secret)]
    assert (await client.user("DELETE", "/tokens/prometheus")).is_success
    seen = ClusterInfo.model_validate((await client.internal("GET", "/nodes/trainer-0/surroundings")).json())
    assert not seen.scrape_tokens


async def test_of_two_nodes_of_one_name_and_place_the_live_one_stays(tmp_path: Path) -> None:
    clock = ManualClock()
    async with on_master(tmp_path, clock=clock) as client:
        first = await one_trainer(client)
        rival = Node(client, first.spec.model_copy(update={"started": "another-incarnation"}))
        check_problem(await rival.register(), 409)  # between two calls of the first
        held = asyncio.create_task(first.beat(5.0))
        presence = client.master.presence
        async with asyncio.timeout(4):
            while not presence.is_expected(first.spec.started):
                await asyncio.sleep(0.01)
        refused = check_problem(await rival.register(), 409)
        assert "the name trainer-0 is taken by a live node" in refused["detail"]
        await client.submit(roles=ONE_TRAINER)
        assert await held
        check_problem(await rival.register(), 409)  # the answer came early, and the first may be about to call again
        clock.advance(1.1)
        assert (await rival.register()).is_success


@pytest.mark.slow
async def test_a_fresh_master_lets_a_machine_that_lost_its_power_enter_before_it_gives_up(tmp_path: Path) -> None:
    clock = ManualClock()
    async with on_master(tmp_path) as client:
        await one_trainer(client)
    async with on_master(tmp_path, clock=clock) as client:
        spec = make_node("trainer-0", Role.TRAINER, boot="the-next-boot")
        node = Node(client, spec.model_copy(update={"started": "another-incarnation"}))
        check_problem(await node.register(), 409)
        clock.advance(3.1)
        assert (await node.register()).is_success


async def test_a_node_that_calls_while_the_database_is_unavailable_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def away(_: Database) -> AsyncGenerator[AsyncConnection]:
        raise OperationalError("SELECT 1", {}, ConnectionError("the server is away"))
        yield  # pyright: ignore[reportUnreachable] - a generator all the same

    clock = ManualClock()
    async with on_master(tmp_path, clock=clock, node_timeout_s=1.5) as client:
        node = await one_trainer(client)
        job = (await client.submit(roles=ONE_TRAINER))["id"]
        (worker,) = await node.workers()
        await node.say(worker, WorkerState.RUNNING)
        await client.until(job, "running")
        with monkeypatch.context() as patched:
            patched.setattr(Database, "read", away)
            for _ in range(4):  # more than the nodes' time, less than what makes a master doubt its own ears
                clock.advance(0.5)
                beat = {"started": node.spec.started}
                check_problem(await client.internal("POST", "/nodes/trainer-0/heartbeat", json=beat), 503)
        await client.master.reconciler.reconcile()
        document = await client.job(job)
        assert (document["state"], len(document["attempts"])) == ("running", 1)
