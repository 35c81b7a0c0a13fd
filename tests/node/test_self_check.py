"""A node's self-check on this machine, against a master that the test plays."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.master.harness import make_node
from tests.node.harness import TOKEN, ScriptedMaster, make_settings

from rolecall.network.routes import Route
from rolecall.node.client import MasterClient
from rolecall.node.findings import GpuInventory
from rolecall.node.self_check import SelfCheck
from rolecall.spec.finding import Finding, Level
from rolecall.spec.role import Role

OF_THE_MASTER = {"clock", "version", "tls"}
TRAINER = make_node("trainer-0", Role.TRAINER)


@asynccontextmanager
async def self_check(master: ScriptedMaster, data: Path, **values: Any) -> AsyncGenerator[SelfCheck]:
    settings = make_settings(master, data, **values)
    client = MasterClient(f"http://127.0.0.1:{master.port}", lambda: TOKEN)
    try:
        yield SelfCheck(settings, client, GpuInventory(0, 0))
    finally:
        await client.close()


def by_check(findings: tuple[Finding, ...]) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings}


async def test_while_the_master_is_unavailable_its_last_answer_counts(tmp_path: Path) -> None:
    master = ScriptedMaster()
    master.ahead_s = 41.0
    async with self_check(master, tmp_path) as check:
        before, _ = await check.run(TRAINER)
        with master.serving():
            reached, _ = await check.run(TRAINER)
        after, _ = await check.run(TRAINER)
    assert not OF_THE_MASTER & by_check(before).keys()
    assert by_check(reached)["clock"].level is Level.ERROR
    assert by_check(reached).keys() - by_check(before).keys() == OF_THE_MASTER
    assert [by_check(after)[one] for one in OF_THE_MASTER] == [by_check(reached)[one] for one in OF_THE_MASTER]


async def test_the_route_comes_with_the_findings(tmp_path: Path) -> None:
    async with self_check(ScriptedMaster(), tmp_path) as check:
        findings, found = await check.run(TRAINER)
    assert found is not None
    assert (found.route, found.resolved) == (Route("lo", "127.0.0.1"), ("127.0.0.1",))
    assert by_check(findings)["network"].level is Level.OK


async def test_a_node_without_a_route_or_a_data_folder_reports_it_with_the_rest(tmp_path: Path) -> None:
    async with self_check(ScriptedMaster(), tmp_path / "gone", master_addr="a..b") as check:
        findings, found = await check.run(TRAINER)
    assert found is None
    found_by_check = by_check(findings)
    assert "no longer has a route to MASTER_ADDR=a..b" in found_by_check["network"].message
    assert found_by_check["disk"].level is Level.ERROR
    assert str(tmp_path / "gone") in found_by_check["disk"].message
    assert found_by_check.keys() >= {"memory", "sandbox", "secret files", "shm", "gpus"}


async def test_only_a_node_that_computes_or_sees_gpus_is_asked_for_them(tmp_path: Path) -> None:
    async with self_check(ScriptedMaster(), tmp_path) as check:
        findings, _ = await check.run(make_node("server-0", Role.PARAMETER_SERVER))
        assert "gpus" not in by_check(findings)
        findings, _ = await check.run(make_node("server-0", Role.PARAMETER_SERVER, gpus=1, workers_per_gpu=2))
    assert by_check(findings).keys() >= {"gpus", "shared gpus"}


async def test_a_file_with_a_secret_that_every_user_can_read_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "token"
    secret.write_text(TOKEN)
    monkeypatch.setenv("ROLECALL_NODE_TOKEN_FILE", str(secret))
    async with self_check(ScriptedMaster(), tmp_path) as check:
        for mode, level in ((0o644, Level.WARNING), (0o640, Level.OK)):
            secret.chmod(mode)
            findings, _ = await check.run(TRAINER)
            assert by_check(findings)["secret files"].level is level
