"""The identity, cores, memory and GPUs of this machine, as far as the container may use them."""

import logging
import math
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import psutil

from rolecall.edge.logs import about
from rolecall.node.findings import GpuInventory, Pair
from rolecall.spec.errors import RolecallError
from rolecall.spec.node import Gpu, Machine

CGROUP = Path("/sys/fs/cgroup")

_LOG = logging.getLogger(__name__)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_QUERY = ("--query-gpu=uuid,name,memory.total", "--format=csv,noheader,nounits")
_ROW = re.compile(r"GPU\d+")
_WHOLE = re.compile(r"GPU \d+: .* \(UUID: (GPU-[^)]+)\)")
_SLICE = re.compile(r"\s+MIG (\S*\.(\d+)gb\S*)\s+Device\s+\d+: \(UUID: (MIG-[^)]+)\)")
_MIB = 1 << 20


class GpusUnknown(RolecallError):
    """The driver's program is installed, but can't list the GPUs."""


def describe_machine(cpu_slots: int | None, gpus: tuple[Gpu, ...], workers_per_gpu: int = 1) -> Machine:
    """The machine of this container, which may use `gpus`. By default, every core is a CPU slot."""
    cores = available_cores()
    return Machine(
        boot_id=_BOOT_ID.read_text().strip(),
        hostname=socket.gethostname(),
        cores=cores,
        cpu_slots=cpu_slots or cores,
        memory_bytes=memory_limit(psutil.virtual_memory().total),
        gpus=gpus,
        workers_per_gpu=workers_per_gpu,
        exclusive=has_quota(os.cpu_count() or cores),
    )


def available_cores(cgroup: Path = CGROUP) -> int:
    """Cores that the affinity mask and the cgroup's quota leave, at least one."""
    allowed = len(os.sched_getaffinity(0))
    return max(1, math.floor(min(allowed, _quota(cgroup) or allowed)))


def has_quota(cores: int, cgroup: Path = CGROUP) -> bool:
    """True if the cgroup's quota is less than the machine's `cores`, so that no other container can take them."""
    quota = _quota(cgroup)
    return quota is not None and quota < cores


def memory_limit(total: int, cgroup: Path = CGROUP) -> int:
    """The cgroup's limit of memory in bytes, at most the machine's `total`."""
    limits = [_number(cgroup / name) for name in ("memory.max", "memory/memory.limit_in_bytes")]
    return min([total, *(limit for limit in limits if limit)])


def available_memory(limit: int, cgroup: Path = CGROUP) -> int:
    """The unused bytes of the machine, or of the cgroup with its `limit`, whichever is less.

    Files that are only cached count as unused: the kernel drops them first.
    """
    available = psutil.virtual_memory().available
    for used, cached, folder in (
        ("memory.current", "inactive_file", cgroup),
        ("memory.usage_in_bytes", "total_inactive_file", cgroup / "memory"),
    ):
        if (bytes_used := _number(folder / used)) is not None:
            available = min(available, limit - bytes_used + (_entry(folder / "memory.stat", cached) or 0))
    return max(0, available)


def oom_kills(cgroup: Path = CGROUP) -> int | None:
    """The number of processes of this cgroup that the kernel killed for memory; None if it isn't known."""
    events, control = cgroup / "memory.events", cgroup / "memory/memory.oom_control"
    found = _entry(events, "oom_kill")
    return _entry(control, "oom_kill") if found is None else found


def find_gpus(environment: Mapping[str, str], program: str = "nvidia-smi") -> tuple[tuple[Gpu, ...], GpuInventory]:
    """The GPUs that workers may use, and an inventory for the self-check."""
    disabled = _are_disabled(environment)
    try:
        known = query_gpus(program)
    except GpusUnknown as error:
        return (), GpuInventory(usable=0, installed=count_installed(), disabled=disabled, failure=str(error))
    usable = visible(known, environment)
    whole = list(dict.fromkeys(gpu.whole for gpu in known))
    indices = {whole.index(gpu.whole) for gpu in usable}
    isolated = [pair for pair in query_isolated_pairs(program) if indices.issuperset(pair)] if len(indices) > 1 else []
    installed = max(count_installed(), len(whole))
    return usable, GpuInventory(usable=len(indices), installed=installed, disabled=disabled, no_peer_access=isolated)


def query_gpus(program: str = "nvidia-smi") -> tuple[Gpu, ...]:
    """The machine's GPUs, or the slices of those that are divided; none if there is no `nvidia-smi`.

    Raises `GpusUnknown` if it fails.
    """
    try:
        whole = [_gpu(line) for line in nvidia_smi(program, *_QUERY).splitlines() if line.strip()]
    except ValueError as error:
        raise GpusUnknown(f"{program} gave an answer that can't be read: {error}") from None
    return divide(whole, nvidia_smi(program, "-L")) if whole else ()


def divide(gpus: Iterable[Gpu], listing: str) -> tuple[Gpu, ...]:
    """The GPUs, with those replaced by their slices that have some in `listing`, the output of `nvidia-smi -L`.

    A slice's name has its size in GB, which is a little less than its memory.
    """
    slices: dict[str, list[re.Match[str]]] = {}
    uuid = ""
    for line in listing.splitlines():
        if found := _WHOLE.match(line):
            uuid = found[1]
        elif found := _SLICE.match(line):
            slices.setdefault(uuid, []).append(found)
    return tuple(
        part
        for gpu in gpus
        for part in ([_slice(gpu, found) for found in slices[gpu.uuid]] if gpu.uuid in slices else [gpu])
    )


def query_isolated_pairs(program: str = "nvidia-smi") -> list[Pair]:
    """Pairs of GPUs, by index, that can't read each other's memory; none if the driver doesn't know."""
    try:
        return parse_isolated_pairs(nvidia_smi(program, "topo", "-p2p", "r"))
    except GpusUnknown as error:
        _LOG.info("peer access between GPUs is unknown: %s", error, extra=about("gpu_peer_access_unknown"))
        return []


def parse_isolated_pairs(table: str) -> list[Pair]:
    """The pairs that are not OK in the output of `nvidia-smi topo -p2p r`; its rows begin with `GPU0`, `GPU1`, …"""
    rows = [cells for line in table.splitlines() if (cells := line.split()) and _ROW.fullmatch(cells[0])]
    states = [cells[1:] for cells in rows if not all(map(_ROW.fullmatch, cells))]
    return [(i, j) for i, row in enumerate(states) for j, state in enumerate(row) if i < j and state != "OK"]


def count_installed(devices: Path = Path("/sys/bus/pci/devices")) -> int:
    """The number of NVIDIA's display and 3D controllers on the PCI bus, which is visible without a driver."""
    return sum(
        _text(device / "vendor") == "0x10de" and _text(device / "class").startswith(("0x0300", "0x0302"))
        for device in (devices.iterdir() if devices.is_dir() else ())
    )


def visible(gpus: tuple[Gpu, ...], environment: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The GPUs or slices that CUDA_VISIBLE_DEVICES selects, by index or by UUID (or the beginning of one).

    The container's engine has already applied other values of NVIDIA_VISIBLE_DEVICES: its indices are the machine's,
    and those here begin with 0 again.
    """
    if _are_disabled(environment):
        return ()
    if (chosen := environment.get("CUDA_VISIBLE_DEVICES", "all")) == "all":
        return gpus
    names = [name.strip() for name in chosen.split(",")]
    matches: Callable[[int, Gpu], bool] = lambda index, gpu: any(  # noqa: E731
        name == str(index) or (name.startswith(("GPU-", "MIG-")) and gpu.uuid.startswith(name)) for name in names
    )
    return tuple(gpu for index, gpu in enumerate(gpus) if matches(index, gpu))


def _are_disabled(environment: Mapping[str, str]) -> bool:
    devices = environment.get("CUDA_VISIBLE_DEVICES", "all").strip()
    return environment.get("NVIDIA_VISIBLE_DEVICES") == "none" or devices in {"", "-1"}


def _gpu(line: str) -> Gpu:
    uuid, name, memory = (part.strip() for part in line.split(","))
    return Gpu(uuid=uuid, name=name, memory_bytes=int(memory) * _MIB)


def _slice(gpu: Gpu, found: re.Match[str]) -> Gpu:
    profile, size, uuid = found.groups()
    memory_bytes = min(int(size) * 10**9, gpu.memory_bytes)
    return Gpu(uuid=uuid, name=f"{gpu.name} {profile}", memory_bytes=memory_bytes, parent=gpu.uuid)


def _quota(cgroup: Path) -> float | None:
    """The number of cores in the cgroup's quota, of version 2 or 1; None without a quota."""
    quota, _, period = _text(cgroup / "cpu.max").partition(" ")
    if quota.isdigit() and int(quota):
        return int(quota) / int(period)
    quota_us, period_us = (_number(cgroup / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return quota_us / period_us if quota_us and period_us else None


def nvidia_smi(program: str, *arguments: str, timeout_s: float = 30.0) -> str:
    """The output of `nvidia-smi`; empty if there is no such program. Raises `GpusUnknown` if it fails."""
    if shutil.which(program) is None:
        return ""
    try:
        done = subprocess.run(  # noqa: S603 - constant commands
            [program, *arguments], capture_output=True, text=True, timeout=timeout_s, check=True
        )
    except subprocess.CalledProcessError as error:
        output = " ".join(f"{error.stdout}{error.stderr}".split())
        raise GpusUnknown(f"{program} ended with exit code {error.returncode}: {output}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GpusUnknown(f"{program}: {error}") from None
    return done.stdout


def _entry(path: Path, name: str) -> int | None:
    """A value of a cgroup file that has a name and a value on each line."""
    values = dict(line.split() for line in _text(path).splitlines() if line.count(" ") == 1)
    return int(values[name]) if name in values else None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
