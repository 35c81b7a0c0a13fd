"""The findings of a node's self-check."""

import errno
import time

import pytest
from tests.node.harness import TOKEN, ScriptedMaster

from rolecall.node.client import MasterClient
from rolecall.node.findings import (
    GIB,
    MIB,
    GpuInventory,
    Space,
    clock,
    disk,
    gpus,
    memory,
    sandbox,
    shared_gpus,
    shm,
    size,
    unwritable,
)
from rolecall.node.self_check import compare_clocks
from rolecall.spec.finding import Finding, Level, version

OK, WARNING, ERROR = Level.OK, Level.WARNING, Level.ERROR


@pytest.mark.parametrize(
    ("finding", "level", "text"),
    [
        (clock(0.9, 0.001), OK, "within 1 s"),
        (clock(-1.5, 0.001), WARNING, "1.5 s behind"),
        (clock(1.5, 0.001), WARNING, "1.5 s ahead of"),
        (clock(3.0, 2.5), OK, "within 1 s"),
        (clock(-41.0, 0.001), ERROR, "its clock is 41 s behind the master's"),
        (clock(31.0, 2.0), WARNING, "31 s ahead of"),
        (disk("/data", Space(50 * GIB, 100 * GIB)), OK, "50 GiB free (50% of 100 GiB)"),
        (disk("/data", Space(4 * GIB, 100 * GIB)), WARNING, "4 GiB free (4% of 100 GiB)"),
        (disk("/data", Space(60 * GIB, 10_000 * GIB)), OK, "60 GiB free"),
        (disk("/data", Space(100 * MIB, 500 * MIB)), WARNING, "100 MiB free"),
        (disk("/data", Space(MIB, GIB)), ERROR, "1 MiB free (0% of 1 GiB)"),
        (disk("/data", Space(50 * GIB, 100 * GIB, has_inodes=False)), ERROR, "no inodes left"),
        (disk("/data", Space(0, 0)), ERROR, "0 B free"),
        (unwritable("/data", "Permission denied"), ERROR, "/data: Permission denied"),
        (shm(64 * MIB, computes=True), WARNING, "(/dev/shm) has 64 MiB"),
        (shm(64 * MIB, computes=False), OK, "64 MiB"),
        (shm(GIB, computes=True), OK, "1 GiB"),
        (version("1.0", "1.0"), OK, "1.0"),
        (version("1.0", "1.1"), ERROR, "its version is 1.0, the master's is 1.1"),
        (gpus(GpuInventory(0, 0)), OK, "no GPU"),
        (gpus(GpuInventory(8, 8)), OK, "8 of 8"),
        (gpus(GpuInventory(0, 8)), WARNING, "it offers 0 of 8 GPUs"),
        (gpus(GpuInventory(1, 8)), OK, "1 of 8"),
        (gpus(GpuInventory(0, 8, disabled=True)), OK, "0 of 8"),
        (gpus(GpuInventory(0, 8, failure="Driver Not Loaded")), WARNING, "be queried: Driver Not"),
        (gpus(GpuInventory(3, 3, no_peer_access=[(0, 2), (1, 2)])), WARNING, "(0-2, 1-2)"),
        (shared_gpus(1, 2), OK, "its GPU is for 2 workers; process groups with two workers on one GPU use Gloo"),
        (shared_gpus(8, 3), OK, "each of its 8 GPUs is for 3 workers"),
        (sandbox("auto", 7, None), OK, "Landlock (version 7) confines its workers"),
        (sandbox("auto", 5, None), WARNING, "they can send signals to every process of the node's user"),
        (sandbox("auto", 7, None, OSError(errno.ENOSYS, "no")), WARNING, "(no seccomp filter: no)"),
        (sandbox("off", 0, None), WARNING, "not confined (ROLECALL_SANDBOX=off)"),
        (sandbox("auto", 0, OSError(errno.ENOSYS, "")), WARNING, "its kernel has no Landlock, so its workers are not"),
        (sandbox("auto", 0, OSError(errno.EOPNOTSUPP, "")), WARNING, "its kernel's Landlock is not enabled"),
        (sandbox("auto", 0, OSError(errno.EPERM, "")), WARNING, "its container may not use Landlock"),
        (sandbox("required", 0, OSError(errno.ENOSYS, "")), ERROR, "may not run (ROLECALL_SANDBOX=required)"),
        (memory(GIB, 4 * GIB), OK, "1 GiB of 4 GiB"),
        (memory(100 * MIB, 4 * GIB), WARNING, "100 MiB of 4 GiB"),
    ],
)
def test_levels_and_messages(finding: Finding, level: Level, text: str) -> None:
    assert finding.level is level
    assert text in finding.message
    assert "\n" not in finding.message + finding.remedy
    assert bool(finding.remedy) == (level is not OK)


@pytest.mark.parametrize(
    ("count", "text"),
    [(5, "5 B"), (2048, "2 KiB"), (1536 * MIB, "1.5 GiB"), (1023 * MIB, "1023 MiB"), (5000 * GIB, "5000 GiB")],
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize("ahead_s", [-41.0, 0.0, 2.0])
async def test_the_clock_is_measured_on_an_answer_of_the_master(ahead_s: float) -> None:
    master = ScriptedMaster()
    client = MasterClient(f"http://127.0.0.1:{master.port}", lambda: TOKEN)
    with master.serving():
        try:
            seen = await compare_clocks(client, "n", lambda: time.time() + ahead_s)
        finally:
            await client.close()
    assert 0 < seen.uncertainty_s < 5
    assert abs(seen.offset_s - ahead_s) <= seen.uncertainty_s + 0.01


async def test_half_the_round_trip_is_the_uncertainty_of_the_masters_clock() -> None:
    master = ScriptedMaster()
    client = MasterClient(f"http://127.0.0.1:{master.port}", lambda: TOKEN)
    with master.serving():
        try:
            seen = await compare_clocks(client, "n", lambda: 1000.0, iter((10.0, 14.0)).__next__)
        finally:
            await client.close()
    assert seen.uncertainty_s == 2.0
    assert seen.offset_s == 1002.0 - seen.cluster.time_s
