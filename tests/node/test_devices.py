"""The devices of a machine, from files like those of a kernel, and a simulated driver."""

import logging
import os
from pathlib import Path

import pytest
from tests.node.simulated_driver import (
    DRIVER_NOT_LOADED,
    NOT_SUPPORTED,
    SimulatedDriver,
    SimulatedGpu,
    SimulatedSlice,
)

from rolecall.node.devices import (
    available_cores,
    available_memory,
    count_installed,
    describe_machine,
    find_gpus,
    has_quota,
    memory_limit,
    oom_kills,
    visible,
)
from rolecall.spec.node import Gpu
from rolecall.spec.role import Role

GPUS = tuple(Gpu(uuid=f"GPU-{letter}", name="H", memory_bytes=1) for letter in "abc")


def test_this_machine() -> None:
    machine = describe_machine(None, ())
    assert 1 <= machine.cores <= len(os.sched_getaffinity(0))
    assert machine.cpu_slots == machine.cores
    assert describe_machine(7, ()).cpu_slots == 7


@pytest.mark.parametrize(
    ("role", "gpus", "workers_per_gpu", "slots"),
    [
        (Role.TRAINER, 0, 2, 4),
        (Role.TRAINER, 3, 1, 7),
        (Role.TRAINER, 3, 2, 10),
        (Role.PARAMETER_SERVER, 3, 2, 38),
        (Role.MASTER, 0, 1, 32),
    ],
)
def test_a_node_offers_its_gpus_and_its_cpu_shares(role: Role, gpus: int, workers_per_gpu: int, slots: int) -> None:
    assert describe_machine(4, GPUS[:gpus], workers_per_gpu).capacity(role) == slots


def test_cores_by_cgroup_quota(tmp_path: Path) -> None:
    affinity = len(os.sched_getaffinity(0))
    assert available_cores(tmp_path) == affinity
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert available_cores(tmp_path) == affinity
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert available_cores(tmp_path) == 1


def test_cores_by_cgroup_v1_quota(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("100000\n")
    assert available_cores(tmp_path) == 1
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("-1\n")
    assert available_cores(tmp_path) == len(os.sched_getaffinity(0))


def test_a_quota_below_the_machines_cores_is_a_container_of_its_own(tmp_path: Path) -> None:
    assert not has_quota(4, tmp_path)
    (tmp_path / "cpu.max").write_text("400000 100000\n")
    assert not has_quota(4, tmp_path)
    (tmp_path / "cpu.max").write_text("200000 100000\n")
    assert has_quota(4, tmp_path)


def test_memory_and_kills_by_cgroup(tmp_path: Path) -> None:
    assert (memory_limit(10, tmp_path), oom_kills(tmp_path)) == (10, None)
    (tmp_path / "memory.max").write_text("7\n")
    (tmp_path / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    assert (memory_limit(10, tmp_path), oom_kills(tmp_path)) == (7, 2)


@pytest.mark.parametrize(
    ("environment", "letters"),
    [
        ({}, "abc"),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, "abc"),
        ({"NVIDIA_VISIBLE_DEVICES": "none"}, ""),
        ({"NVIDIA_VISIBLE_DEVICES": "5,6,7"}, "abc"),  # Of the machine's eight these three are in the container.
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, "abc"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-c"}, "c"),
        ({"CUDA_VISIBLE_DEVICES": "0,2"}, "ac"),
        ({"CUDA_VISIBLE_DEVICES": ""}, ""),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, ""),
    ],
)
def test_visible_gpus(environment: dict[str, str], letters: str) -> None:
    assert "".join(gpu.uuid[-1] for gpu in visible(GPUS, environment)) == letters


DIVIDED = SimulatedGpu(
    "GPU-e86cb44c",
    slices=(SimulatedSlice("MIG-c7384736", "MIG 3g.20gb"), SimulatedSlice("MIG-a28ad590", "MIG 1c.3g.20gb", slot=1)),
)
WHOLE = SimulatedGpu("GPU-6b62ae9c")


@pytest.mark.parametrize(
    ("chosen", "usable", "pairs"),
    [("all", 3, [(0, 1)]), ("MIG-c7384736", 1, []), ("MIG-a28ad590,GPU-6b62ae9c", 2, [(0, 1)])],
)
def test_slices_are_chosen_by_their_uuids(
    driver: SimulatedDriver, chosen: str, usable: int, pairs: list[tuple[int, int]]
) -> None:
    """The inventory counts whole GPUs, and names them by the driver's indices."""
    driver.has(DIVIDED, WHOLE, isolated=[(0, 1)])
    found, inventory = find_gpus({"CUDA_VISIBLE_DEVICES": chosen})
    assert len(found) == usable
    assert (inventory.usable, inventory.no_peer_access) == (len({gpu.whole for gpu in found}), pairs)


def test_a_driver_that_fails_is_reported_with_its_words(driver: SimulatedDriver) -> None:
    driver.has(WHOLE, init_result=DRIVER_NOT_LOADED)
    usable, inventory = find_gpus({})
    assert usable == ()
    assert inventory.failure.startswith("NVIDIA's driver failed: Driver Not Loaded;")


def test_unknown_peer_access_is_logged(driver: SimulatedDriver, caplog: pytest.LogCaptureFixture) -> None:
    driver.has(WHOLE, DIVIDED, peers_error=NOT_SUPPORTED)
    with caplog.at_level(logging.INFO):
        usable, inventory = find_gpus({})
    assert (len(usable), inventory.usable, list(inventory.no_peer_access), inventory.failure) == (3, 2, [], "")
    assert "peer access between GPUs is unknown: Not Supported" in caplog.text


def test_gpus_on_the_bus(tmp_path: Path) -> None:
    for place, vendor, kind in (("a", "0x10de", "0x030200"), ("b", "0x10de", "0x040300"), ("c", "0x8086", "0x030000")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "vendor").write_text(f"{vendor}\n")
        (tmp_path / place / "class").write_text(f"{kind}\n")
    assert count_installed(tmp_path) == 1
    assert count_installed(tmp_path / "none") == 0


def test_memory_that_is_left(tmp_path: Path) -> None:
    whole = available_memory(1 << 40, tmp_path)
    assert 0 < whole < 1 << 40
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.stat").write_text("anon 600\ninactive_file 400\n")
    assert available_memory(1100, tmp_path) == 500
