"""What this machine is and offers: its identity, cores, memory and GPUs, as the container is allowed to use them."""

import logging
import math
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from rolecall.spec.node import Gpu, Machine
from rolecall.spec.role import Role

CGROUP = Path("/sys/fs/cgroup")

_LOG = logging.getLogger(__name__)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_QUERY = ("--query-gpu=uuid,name,memory.total", "--format=csv,noheader,nounits")
_MIB = 1 << 20


def describe_machine(cpu_slots: int | None) -> Machine:
    """The machine below this container; without `cpu_slots`, every core is one."""
    cores = available_cores()
    return Machine(
        boot_id=_BOOT_ID.read_text().strip(),
        hostname=socket.gethostname(),
        cores=cores,
        cpu_slots=cpu_slots or cores,
        memory_bytes=memory_limit(psutil.virtual_memory().total),
        gpus=visible(query_gpus(), os.environ),
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


def oom_kills(cgroup: Path = CGROUP) -> int | None:
    """How often the kernel has killed a process of this cgroup for memory; None where it doesn't say."""
    for name in ("memory.events", "memory/memory.oom_control"):
        for line in _text(cgroup / name).splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None


def query_gpus(program: str = "nvidia-smi") -> tuple[Gpu, ...]:
    """The machine's GPUs by `nvidia-smi`; none where there is no such program. One that fails is a warning."""
    if shutil.which(program) is None:
        return ()
    try:
        done = subprocess.run(  # noqa: S603 - a constant command
            [program, *_QUERY], capture_output=True, text=True, timeout=30, check=True
        )
        return tuple(_gpu(line) for line in done.stdout.splitlines() if line.strip())
    except subprocess.CalledProcessError as error:
        said = f"{error.stdout}{error.stderr}".strip()
        _LOG.warning("no GPU is offered: %s ended with exit code %d: %s", program, error.returncode, said)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        _LOG.warning("no GPU is offered: %s: %s", program, error)
    return ()


def visible(gpus: tuple[Gpu, ...], environment: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Those of `gpus` that the environment leaves, by index or by UUID (or the beginning of one)."""
    for name in ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        chosen = environment.get(name)
        if chosen is not None and chosen not in {"all", "void"} and not (chosen == "" and name.startswith("NVIDIA")):
            gpus = _chosen(gpus, chosen)
    return gpus


def _chosen(gpus: tuple[Gpu, ...], chosen: str) -> tuple[Gpu, ...]:
    names = [name.strip() for name in chosen.split(",")]
    matches: Callable[[int, Gpu], bool] = lambda index, gpu: any(  # noqa: E731
        name == str(index) or (name.startswith("GPU-") and gpu.uuid.startswith(name)) for name in names
    )
    return tuple(gpu for index, gpu in enumerate(gpus) if matches(index, gpu))


def _gpu(line: str) -> Gpu:
    uuid, name, memory = (part.strip() for part in line.split(","))
    return Gpu(uuid=uuid, name=name, memory_bytes=int(memory) * _MIB)


def _quota_v2(cgroup: Path) -> float | None:
    quota, _, period = _text(cgroup / "cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdigit() else None


def _quota_v1(cgroup: Path) -> float | None:
    quota, period = (_number(cgroup / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return quota / period if quota and period else None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
