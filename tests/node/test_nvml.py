"""The process that asks NVIDIA's driver, which is simulated by a real shared library."""

import ctypes.util
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from pydantic import TypeAdapter
from tests.node.simulated_driver import (
    CRASH,
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    HANG,
    LIBRARY,
    MIB,
    NO_PERMISSION,
    NOT_SUPPORTED,
    VERSION_MISMATCH,
    SimulatedDriver,
    SimulatedGpu,
    SimulatedSlice,
)

from rolecall.node.devices import GpusUnknown, Listed, ask_driver
from rolecall.node.gpu_readings import GpuReading
from rolecall.spec.node import Gpu

FIRST = SimulatedGpu("GPU-e86cb44c", use=37, used_bytes=1024 * MIB)
SECOND = SimulatedGpu("GPU-6b62ae9c")
THIRD = SimulatedGpu("GPU-11111111")
A_MINUTE = 60.0


def inventory() -> Listed:
    return ask_driver("inventory", TypeAdapter(Listed), A_MINUTE)


def use() -> list[GpuReading]:
    return ask_driver("use", TypeAdapter(list[GpuReading]), A_MINUTE)


def test_whole_gpus(driver: SimulatedDriver) -> None:
    assert inventory() == Listed(gpus=())
    driver.has(FIRST, SimulatedGpu("GPU-6b62ae9c", "NVIDIA A100-SXM4-40GB", total_bytes=5))
    first = Gpu(uuid="GPU-e86cb44c", name="NVIDIA H200", memory_bytes=40536 * MIB)
    second = Gpu(uuid="GPU-6b62ae9c", name="NVIDIA A100-SXM4-40GB", memory_bytes=5)
    assert inventory() == Listed(gpus=(first, second))


def test_slices_replace_their_gpu(driver: SimulatedDriver) -> None:
    """Its own memory is not read, which needs privileges."""
    slices = (
        SimulatedSlice("MIG-c7384736", "NVIDIA H200 MIG 3g.71gb", total_bytes=71, slot=1),
        SimulatedSlice("MIG-a28ad590", "NVIDIA H200 MIG 1c.3g.71gb", total_bytes=72, slot=4),
    )
    driver.has(SimulatedGpu("GPU-e86cb44c", memory_error=NO_PERMISSION, slices=slices), SECOND)
    first, second, whole = inventory().gpus
    assert first == Gpu(uuid="MIG-c7384736", name="NVIDIA H200 3g.71gb", memory_bytes=71, parent="GPU-e86cb44c")
    assert second == Gpu(uuid="MIG-a28ad590", name="NVIDIA H200 1c.3g.71gb", memory_bytes=72, parent="GPU-e86cb44c")
    assert (whole.uuid, whole.parent) == (SECOND.uuid, None)


@pytest.mark.parametrize("name", ["MIG 3g.71gb", "3g.71gb", "NVIDIA H200 MIG 3g.71gb"])
def test_the_name_of_a_slice_begins_with_the_name_of_its_gpu_once(driver: SimulatedDriver, name: str) -> None:
    driver.has(SimulatedGpu("GPU-e86cb44c", slices=(SimulatedSlice("MIG-c7384736", name),)))
    assert [gpu.name for gpu in inventory().gpus] == ["NVIDIA H200 3g.71gb"]


def test_a_gpu_that_could_have_slices_and_has_none_is_whole(driver: SimulatedDriver) -> None:
    driver.has(SimulatedGpu("GPU-e86cb44c", slices=()))
    assert [gpu.uuid for gpu in inventory().gpus] == ["GPU-e86cb44c"]


def test_slices_of_other_containers_are_not_offered_nor_their_gpu(driver: SimulatedDriver) -> None:
    other = SimulatedSlice("MIG-c7384736", "3g.71gb", slot=1, handle_error=NO_PERMISSION)
    own = SimulatedSlice("MIG-a28ad590", "3g.71gb", slot=2)
    divided = SimulatedGpu("GPU-e86cb44c", memory_error=NO_PERMISSION, slices=(other, own))
    driver.has(divided, SECOND)
    assert [gpu.uuid for gpu in inventory().gpus] == ["MIG-a28ad590", SECOND.uuid]
    driver.has(replace(divided, slices=(other,)), SECOND)
    assert [gpu.uuid for gpu in inventory().gpus] == [SECOND.uuid]


def test_pairs_without_peer_access(driver: SimulatedDriver) -> None:
    driver.has(FIRST, SECOND, THIRD, isolated=[(0, 2)])
    assert inventory().no_peer_access == ((0, 2),)


def test_gpus_are_listed_if_their_peer_access_is_unknown(driver: SimulatedDriver) -> None:
    driver.has(FIRST, SECOND, peers_error=NOT_SUPPORTED)
    found = inventory()
    assert [gpu.uuid for gpu in found.gpus] == [FIRST.uuid, SECOND.uuid]
    assert found.peer_access_unknown == "Not Supported"


def test_gpus_of_other_containers_are_left_out(driver: SimulatedDriver) -> None:
    """They count for the driver, but not for the indices of pairs."""
    driver.has(SimulatedGpu("GPU-other", handle_error=NO_PERMISSION), FIRST, SECOND, isolated=[(1, 2)])
    found = inventory()
    assert [gpu.uuid for gpu in found.gpus] == [FIRST.uuid, SECOND.uuid]
    assert found.no_peer_access == ((0, 1),)
    assert [reading.uuid for reading in use()] == [FIRST.uuid, SECOND.uuid]


def test_use(driver: SimulatedDriver) -> None:
    divided = SimulatedGpu("GPU-6b62ae9c", use=0, used_bytes=12, slices=(SimulatedSlice("MIG-c7384736", "3g.71gb"),))
    driver.has(FIRST, divided, SimulatedGpu("GPU-old", use=None, used_bytes=13))
    assert use() == [
        GpuReading(FIRST.uuid, 0.37, 1024 * MIB, 40536 * MIB),
        GpuReading("GPU-6b62ae9c", None, 12, 40536 * MIB),
        GpuReading("GPU-old", None, 13, 40536 * MIB),
    ]


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION])
def test_a_gpu_without_known_memory_has_no_reading(driver: SimulatedDriver, code: int) -> None:
    driver.has(SimulatedGpu("GPU-6b62ae9c", memory_error=code), FIRST)
    assert [reading.uuid for reading in use()] == [FIRST.uuid]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (DRIVER_NOT_LOADED, "failed: Driver Not Loaded;"),
        (VERSION_MISMATCH, "failed: RM has detected an NVML/RM version mismatch;"),
        (27, "failed: a text of the library;"),
        (CRASH, "failed: SIGSEGV;"),
    ],
)
@pytest.mark.parametrize("ask", [inventory, use])
def test_a_driver_that_does_not_start(driver: SimulatedDriver, ask: Callable[[], object], code: int, text: str) -> None:
    driver.has(FIRST, init_result=code)
    with pytest.raises(GpusUnknown) as caught:
        ask()
    assert text in str(caught.value)
    assert "nvidia-smi" in str(caught.value), "what to do"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "lost",
    [SimulatedGpu("GPU-6b62ae9c", handle_error=GPU_IS_LOST), SimulatedGpu("GPU-6b62ae9c", memory_error=GPU_IS_LOST)],
    ids=["before", "while it is read"],
)
@pytest.mark.parametrize("ask", [inventory, use])
def test_a_lost_gpu_is_not_hidden(driver: SimulatedDriver, ask: Callable[[], object], lost: SimulatedGpu) -> None:
    driver.has(FIRST, lost, THIRD)
    with pytest.raises(GpusUnknown, match="GPU 1: GPU is lost;"):
        ask()


@pytest.mark.slow
def test_a_driver_that_hangs_is_killed(driver: SimulatedDriver) -> None:
    driver.has(FIRST, init_result=HANG)
    with pytest.raises(GpusUnknown, match=r"did not answer within 0\.7 s;"):
        ask_driver("inventory", TypeAdapter(Listed), 0.7)
    assert not [child for child in psutil.Process().children() if "rolecall.node.nvml" in child.cmdline()]


def test_an_answer_that_can_not_be_read(driver: SimulatedDriver) -> None:
    driver.has(FIRST)
    with pytest.raises(GpusUnknown, match="can't be read: Listed: Input should be an object;"):
        ask_driver("use", TypeAdapter(Listed), A_MINUTE)


def test_a_machine_has_gpus_only_with_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    has_driver = ctypes.util.find_library("nvidia-ml") is not None
    assert bool(inventory().gpus) == bool(use()) == has_driver


def test_a_library_that_can_not_be_loaded_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the empty files that images have which were built on a machine with a GPU."""
    (tmp_path / LIBRARY).touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert inventory() == Listed(gpus=())


def test_it_imports_little() -> None:
    code = "import sys, rolecall.node.nvml; print(*sys.modules)"
    imported = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pynvml" in imported.split()
    assert not {"asyncio", "psutil", "pydantic", "rolecall.spec", "torch"} & set(imported.split())
