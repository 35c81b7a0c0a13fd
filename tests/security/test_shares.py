"""Shares of what everybody needs: however many users call, nodes and the master's own loops get theirs."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.master.harness import Node, make_node, make_token, on_master, one_trainer, submit_as
from tests.running import accepted

from rolecall.master.store.database import Database, serve_user
from rolecall.spec.access import Scope
from rolecall.spec.role import Role


async def occupy(database: Database, holding: asyncio.Event, count: int) -> list[asyncio.Task[None]]:
    """`count` calls of users that are about to use the database, each with as slow a query as there is."""

    async def call() -> None:
        serve_user()
        async with database.read():
            await holding.wait()

    calls = [asyncio.create_task(call()) for _ in range(count)]
    await asyncio.sleep(0)
    return calls


async def test_users_leave_connections_to_nodes(tmp_path: Path) -> None:
    async with on_master(tmp_path) as client:
        node = await one_trainer(client)
        released = asyncio.Event()
        calls = await occupy(client.master.database, released, 60)
        async with asyncio.timeout(5):
            await node.enter()
            await node.beat()
            assert (await client.user("GET", "/readyz")).status_code == 200
        with pytest.raises(httpx.ReadTimeout):
            await client.user("GET", "/jobs", timeout=0.3)
        released.set()
        await asyncio.gather(*calls)
        assert (await client.user("GET", "/jobs")).status_code == 200


async def test_workers_take_the_share_of_users(tmp_path: Path) -> None:
    async with on_master(tmp_path) as client:
        node = await one_trainer(client)
        released = asyncio.Event()
        calls = await occupy(client.master.database, released, 60)
        with pytest.raises(httpx.ReadTimeout):
            await client.worker("GET", "toy-1", 1, "/blobs/1/part", timeout=0.3)
        async with asyncio.timeout(5):
            await node.enter()
        released.set()
        await asyncio.gather(*calls)
        assert (await client.worker("GET", "toy-1", 1, "/blobs/1/part")).status_code == 404


async def test_each_request_says_whose_share_it_takes(tmp_path: Path) -> None:
    async with on_master(tmp_path) as client:
        released = asyncio.Event()
        calls = await occupy(client.master.database, released, 60)

        async def after_a_user() -> None:
            serve_user()
            serve_user(is_user=False)
            await client.master.database.ping()

        async with asyncio.timeout(5):
            await asyncio.create_task(after_a_user())
        released.set()
        await asyncio.gather(*calls)


async def test_a_node_waits_for_one_writing_user_at_most(tmp_path: Path) -> None:
    async with on_master(tmp_path) as client:
        order: list[str] = []

        async def write(who: str) -> None:
            if who == "user":
                serve_user()
            async with client.master.database.write():
                order.append(who)
                await asyncio.sleep(0.01)

        users = [asyncio.create_task(write("user")) for _ in range(20)]
        await asyncio.sleep(0)
        await write("node")
        assert order.count("user") <= 2
        await asyncio.gather(*users)


async def test_threads_are_no_way_around_a_limit_of_slots(tmp_path: Path) -> None:
    async with on_master(tmp_path) as client:
        alice = await make_token(client, "alice", Scope.SUBMIT, max_slots=3)
        node = Node(client, make_node("trainer-0", Role.TRAINER, 8, cores=8))
        await node.register()
        await node.beat()
        wide = await submit_as(client, alice, roles=_trainers(1, threads=8))
        assert wide.status_code == 422
        assert "needs 8 slots, and token alice may run 3" in wide.json()["errors"][0]["message"]
        first = accepted(await submit_as(client, alice, roles=_trainers(1, threads=2)))["id"]
        second = accepted(await submit_as(client, alice, roles=_trainers(1, threads=2)))["id"]
        await client.until(first, "placed")
        waiting = await client.until(second, "queued", also=lambda job: job["waiting_for"])
        assert "token alice uses 2 of its 3 slots, and this job needs 2" in waiting["waiting_for"]
        small = accepted(await submit_as(client, alice, roles=_trainers(1, threads=1)))["id"]
        await client.until(small, "placed")


def _trainers(count: int, *, threads: int) -> dict[str, Any]:
    return {"parameter-server": 0, "trainer": {"count": count, "threads": threads}}
