"""The identity, cores, memory and GPUs of this machine, as far as the container may use them."""

import logging
import math
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import psutil
from pydantic import TypeAdapter, ValidationError

from rolecall.logs import about
from rolecall.node.findings import GpuInventory, Pair
from rolecall.process import describe_exit
from rolecall.spec.errors import RolecallError
from rolecall.spec.model import Value, first_problem
from rolecall.spec.node import Gpu, Machine

CGROUP = Path("/sys/fs/cgroup")

_LOG = logging.getLogger(__name__)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# `-P`: the node's working folder has no part in where the process finds code.
_ASK = (sys.executable, "-P", "-m", "rolecall.node.nvml")
_LIMIT_S = 30.0
_WHERE_TO_LOOK = "`nvidia-smi` and the kernel's log may show more"
_Answer = TypeVar("_Answer")


class GpusUnknown(RolecallError):
    """The driver is installed, but doesn't answer."""


class Listed(Value):
    """The driver's `inventory`: the machine's GPUs, or the slices of those that are divided."""

    gpus: tuple[Gpu, ...]
    no_peer_access: tuple[Pair, ...] = ()
    """Pairs of GPUs, by their indices in the list, that can't read each other's memory."""
    peer_access_unknown: str = ""
    """The driver's error if it doesn't know the pairs."""


_LISTED = TypeAdapter(Listed)


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


def find_gpus(environment: Mapping[str, str]) -> tuple[tuple[Gpu, ...], GpuInventory]:
    """The GPUs that workers may use, and an inventory for the self-check."""
    disabled = _are_disabled(environment)
    try:
        listed = ask_driver("inventory", _LISTED, _LIMIT_S)
    except GpusUnknown as error:
        return (), GpuInventory(usable=0, installed=count_installed(), disabled=disabled, failure=str(error))
    if listed.peer_access_unknown:
        why = listed.peer_access_unknown
        _LOG.info("peer access between GPUs is unknown: %s", why, extra=about("gpu_peer_access_unknown"))
    usable = visible(listed.gpus, environment)
    whole = list(dict.fromkeys(gpu.whole for gpu in listed.gpus))
    indices = {whole.index(gpu.whole) for gpu in usable}
    isolated = [pair for pair in listed.no_peer_access if indices.issuperset(pair)]
    installed = max(count_installed(), len(whole))
    return usable, GpuInventory(usable=len(indices), installed=installed, disabled=disabled, no_peer_access=isolated)


def ask_driver(question: str, answer: TypeAdapter[_Answer], limit_s: float) -> _Answer:
    """The answer of NVIDIA's driver to `inventory` or `use`, from a process that is killed after `limit_s`.

    Raises `GpusUnknown` if the driver fails, hangs, or crashes the process.
    """
    try:
        done = subprocess.run([*_ASK, question], capture_output=True, timeout=limit_s, check=False)  # noqa: S603
        if done.returncode:
            printed = done.stderr.decode(errors="replace").strip().splitlines()
            # The last line is the driver's error, unless a signal ended the process.
            why = printed[-1].rstrip(".") if printed and done.returncode > 0 else describe_exit(done.returncode)
            raise GpusUnknown(f"NVIDIA's driver failed: {why}; {_WHERE_TO_LOOK}")
        return answer.validate_json(done.stdout)
    except subprocess.TimeoutExpired:
        raise GpusUnknown(f"NVIDIA's driver did not answer within {limit_s:g} s; {_WHERE_TO_LOOK}") from None
    except OSError as error:
        raise GpusUnknown(f"{sys.executable} does not start: {error}; install Rolecall again") from None
    except ValidationError as error:
        problem = first_problem(error)
        raise GpusUnknown(f"NVIDIA's driver gave an answer that can't be read: {problem}; {_WHERE_TO_LOOK}") from None


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


def _quota(cgroup: Path) -> float | None:
    """The number of cores in the cgroup's quota, of version 2 or 1; None without a quota."""
    quota, _, period = _text(cgroup / "cpu.max").partition(" ")
    if quota.isdigit() and int(quota):
        return int(quota) / int(period)
    quota_us, period_us = (_number(cgroup / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return quota_us / period_us if quota_us and period_us else None


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
