"""What this machine is and offers: its identity, cores, memory and GPUs, as the container is allowed to use them."""

import logging
import math
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from rolecall.edge.logs import about
from rolecall.node.findings import GpuInventory, Pair
from rolecall.spec.errors import RolecallError
from rolecall.spec.node import Gpu, Machine
from rolecall.spec.role import Role

CGROUP = Path("/sys/fs/cgroup")

_LOG = logging.getLogger(__name__)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_QUERY = ("--query-gpu=uuid,name,memory.total", "--format=csv,noheader,nounits")
_ROW = re.compile(r"GPU\d+")
_MIB = 1 << 20


class GpusUnknown(RolecallError):
    """The driver's program is there, but can't say which GPUs there are."""


def describe_machine(cpu_slots: int | None, gpus: tuple[Gpu, ...]) -> Machine:
    """The machine below this container, which may use `gpus`; without `cpu_slots`, every core is one."""
    cores = available_cores()
    return Machine(
        boot_id=_BOOT_ID.read_text().strip(),
        hostname=socket.gethostname(),
        cores=cores,
        cpu_slots=cpu_slots or cores,
        memory_bytes=memory_limit(psutil.virtual_memory().total),
        gpus=gpus,
        exclusive=has_quota(os.cpu_count() or cores),
    )


def default_slots(machine: Machine, role: Role) -> int:
    """How many workers a node takes at once when it isn't told: as many as the machine has room for."""
    if role.computes and machine.gpus:
        return len(machine.gpus)
    return int(machine.cpu_slots / role.weight)


def available_cores(cgroup: Path = CGROUP) -> int:
    """Cores that the affinity mask and the cgroup's quota leave, at least one."""
    allowed = len(os.sched_getaffinity(0))
    quota = _quota_v2(cgroup) or _quota_v1(cgroup) or float(allowed)
    return max(1, math.floor(min(allowed, quota)))


def has_quota(cores: int, cgroup: Path = CGROUP) -> bool:
    """Whether the cgroup's quota leaves less than the machine's `cores`, and so what no other container can take."""
    quota = _quota_v2(cgroup) or _quota_v1(cgroup)
    return quota is not None and quota < cores


def memory_limit(total: int, cgroup: Path = CGROUP) -> int:
    """Bytes of memory that the cgroup leaves of the machine's `total`."""
    limits = [_number(cgroup / name) for name in ("memory.max", "memory/memory.limit_in_bytes")]
    return min([total, *(limit for limit in limits if limit)])


def available_memory(limit: int, cgroup: Path = CGROUP) -> int:
    """Bytes that are left of `limit`: what nobody uses on the machine, or in the cgroup, whichever is less.

    Files that are only cached count as unused: the kernel drops them first.
    """
    left = psutil.virtual_memory().available
    for used, cached, folder in (
        ("memory.current", "inactive_file", cgroup),
        ("memory.usage_in_bytes", "total_inactive_file", cgroup / "memory"),
    ):
        if (bytes_used := _number(folder / used)) is not None:
            left = min(left, limit - bytes_used + (_entry(folder / "memory.stat", cached) or 0))
    return max(0, left)


def oom_kills(cgroup: Path = CGROUP) -> int | None:
    """How often the kernel has killed a process of this cgroup for memory; None where it doesn't say."""
    events, control = cgroup / "memory.events", cgroup / "memory/memory.oom_control"
    found = _entry(events, "oom_kill")
    return _entry(control, "oom_kill") if found is None else found


def find_gpus(environment: Mapping[str, str], program: str = "nvidia-smi") -> tuple[tuple[Gpu, ...], GpuInventory]:
    """The GPUs that workers may use, and what is to be said of them."""
    disabled = _declines(environment)
    try:
        known = query_gpus(program)
    except GpusUnknown as error:
        return (), GpuInventory(usable=0, installed=count_plugged(), disabled=disabled, failure=str(error))
    usable = visible(known, environment)
    indices = {known.index(gpu) for gpu in usable}
    apart = [pair for pair in query_apart(program) if indices.issuperset(pair)] if len(usable) > 1 else []
    present = max(count_plugged(), len(known))
    return usable, GpuInventory(usable=len(usable), installed=present, disabled=disabled, no_peer_access=apart)


def query_gpus(program: str = "nvidia-smi") -> tuple[Gpu, ...]:
    """The machine's GPUs by `nvidia-smi`; none where there is no such program. Raises `GpusUnknown` when it fails."""
    try:
        return tuple(_gpu(line) for line in _ask(program, *_QUERY).splitlines() if line.strip())
    except ValueError as error:
        raise GpusUnknown(f"{program} gave an answer that can't be read: {error}") from None


def query_apart(program: str = "nvidia-smi") -> list[Pair]:
    """Pairs of GPUs, by index, that can't read each other's memory; none where the driver doesn't say."""
    try:
        return parse_apart(_ask(program, "topo", "-p2p", "r"))
    except GpusUnknown as error:
        _LOG.info("peer access between GPUs is unknown: %s", error, extra=about("gpu_peer_access_unknown"))
        return []


def parse_apart(table: str) -> list[Pair]:
    """The pairs that `nvidia-smi topo -p2p r` does not call OK; its rows begin with `GPU0`, `GPU1`, …"""
    rows = [cells for line in table.splitlines() if (cells := line.split()) and _ROW.fullmatch(cells[0])]
    states = [cells[1:] for cells in rows if not all(map(_ROW.fullmatch, cells))]
    return [(i, j) for i, row in enumerate(states) for j, state in enumerate(row) if i < j and state != "OK"]


def count_plugged(devices: Path = Path("/sys/bus/pci/devices")) -> int:
    """NVIDIA's display and 3D controllers on the PCI bus, which a container sees without any driver."""
    return sum(
        _text(device / "vendor") == "0x10de" and _text(device / "class").startswith(("0x0300", "0x0302"))
        for device in (devices.iterdir() if devices.is_dir() else ())
    )


def visible(gpus: tuple[Gpu, ...], environment: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Those of `gpus` that CUDA_VISIBLE_DEVICES leaves, by index or by UUID (or the beginning of one).

    What else NVIDIA_VISIBLE_DEVICES says has been done before the container began: its numbers are the machine's, and
    those here begin with 0 again.
    """
    if _declines(environment):
        return ()
    if (chosen := environment.get("CUDA_VISIBLE_DEVICES", "all")) == "all":
        return gpus
    names = [name.strip() for name in chosen.split(",")]
    matches: Callable[[int, Gpu], bool] = lambda index, gpu: any(  # noqa: E731
        name == str(index) or (name.startswith("GPU-") and gpu.uuid.startswith(name)) for name in names
    )
    return tuple(gpu for index, gpu in enumerate(gpus) if matches(index, gpu))


def _declines(environment: Mapping[str, str]) -> bool:
    """Whether it is said that there shall be no GPUs."""
    wanted = environment.get("CUDA_VISIBLE_DEVICES", "all").strip()
    return environment.get("NVIDIA_VISIBLE_DEVICES") == "none" or wanted in {"", "-1"}


def _gpu(line: str) -> Gpu:
    uuid, name, memory = (part.strip() for part in line.split(","))
    return Gpu(uuid=uuid, name=name, memory_bytes=int(memory) * _MIB)


def _quota_v2(cgroup: Path) -> float | None:
    quota, _, period = _text(cgroup / "cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdigit() else None


def _quota_v1(cgroup: Path) -> float | None:
    quota, period = (_number(cgroup / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return quota / period if quota and period else None


def _ask(program: str, *arguments: str) -> str:
    """What `nvidia-smi` answers; nothing where there is no such program."""
    if shutil.which(program) is None:
        return ""
    try:
        done = subprocess.run(  # noqa: S603 - constant commands
            [program, *arguments], capture_output=True, text=True, timeout=30, check=True
        )
    except subprocess.CalledProcessError as error:
        said = " ".join(f"{error.stdout}{error.stderr}".split())
        raise GpusUnknown(f"{program} ended with exit code {error.returncode}: {said}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GpusUnknown(f"{program}: {error}") from None
    return done.stdout


def _entry(path: Path, name: str) -> int | None:
    """A figure of a cgroup file with a name and a figure on each line."""
    figures = dict(line.split() for line in _text(path).splitlines() if line.count(" ") == 1)
    return int(figures[name]) if name in figures else None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
