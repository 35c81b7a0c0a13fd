"""A simulated driver of NVIDIA: a shared library in the place of `libnvidia-ml.so.1`, whose answers a test chooses."""

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.prerequisites import require_programs

LIBRARY = "libnvidia-ml.so.1"
MIB = 1 << 20
HANG, CRASH = -1, -2
# As in nvml.h.
NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, GPU_IS_LOST, VERSION_MISMATCH = 3, 4, 9, 15, 18
_SOURCE = Path(__file__).with_name("simulated_nvml.c")
_FLAGS = ("-std=c11", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")


@dataclass(frozen=True)
class SimulatedSlice:
    uuid: str
    name: str
    total_bytes: int = 0
    slot: int = 0
    """Its index among the slices. Slots can be empty."""
    handle_error: int = 0


@dataclass(frozen=True)
class SimulatedGpu:
    """A GPU, with the codes of the errors that it answers with; 0 for none."""

    uuid: str
    name: str = "NVIDIA H200"
    total_bytes: int = 40536 * MIB
    used_bytes: int = 0
    use: int | None = 0
    """In per cent; None if the driver doesn't know it."""
    handle_error: int = 0
    memory_error: int = 0
    slices: tuple[SimulatedSlice, ...] | None = None
    """None if it can't be divided."""

    def lines(self) -> Iterable[str]:
        use, divided = -1 if self.use is None else self.use, int(self.slices is not None)
        memory = f"{self.used_bytes} {self.total_bytes}"
        yield f"gpu {self.handle_error} {self.memory_error} {use} {memory} {divided} {self.uuid} {self.name}"
        for one in self.slices or ():
            yield f"slice {one.handle_error} {one.slot} {one.total_bytes} {one.uuid} {one.name}"


class SimulatedDriver:
    """Processes that this one starts find the library, which reads its answers from a file."""

    def __init__(self, library: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._answers = folder / "nvml"
        monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))
        monkeypatch.setenv("SIMULATED_NVML", str(self._answers))
        self.has()

    def has(
        self,
        *gpus: SimulatedGpu,
        isolated: Iterable[tuple[int, int]] = (),
        init_result: int = 0,
        peers_error: int = 0,
    ) -> None:
        """From now on, the machine has these GPUs. `init_result` can be the code of an error, `HANG` or `CRASH`."""
        lines = [line for gpu in gpus for line in gpu.lines()]
        lines += [f"isolated {i} {j}" for i, j in isolated]
        lines += [f"init {init_result}", f"peers {peers_error}"]
        self._answers.write_text("\n".join(lines) + "\n")


def compile_driver(folder: Path) -> Path:
    """Compile the library into a folder."""
    require_programs("cc")
    library = folder / LIBRARY
    subprocess.run(["cc", *_FLAGS, str(_SOURCE), "-o", str(library)], check=True)
    return library
