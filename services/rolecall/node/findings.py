"""The findings of a node's self-check about its machine: pure functions of its measurements.

Those about its route to the master are in `network/findings.py`.

Each message is a sentence about the node ("its clock is …"), to be shown after the node's name.
"""

import errno
from collections.abc import Sequence
from typing import NamedTuple

from rolecall.spec.finding import Finding, Level

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
CLOCK_WARNING_S, CLOCK_ERROR_S = 1.0, 30.0
DISK_ERROR_BYTES = 16 * MIB
"""The minimum for a worker's folder and the first lines of its log."""
SHM_BYTES = 256 * MIB
MEMORY_BYTES = 512 * MIB
"""The approximate memory of a worker without its model and batches."""
_SIGNALS_SINCE = 6
"""The first version of Landlock's interface that restricts signals."""

Pair = tuple[int, int]


class Space(NamedTuple):
    """The space of a file system: bytes that are free for this user, bytes in total, and free inodes."""

    free: int
    total: int
    has_inodes: bool = True


class GpuInventory(NamedTuple):
    """The number of GPUs when the node started."""

    usable: int
    """The GPUs for this node's workers."""
    installed: int
    """The GPUs of the machine, also those that this container may not use."""
    disabled: bool = False
    """True if the environment disables all GPUs."""
    failure: str = ""
    """The driver's error if it failed."""
    no_peer_access: Sequence[Pair] = ()
    """Pairs that can't reach each other's memory."""


def clock(offset_s: float, uncertainty_s: float) -> Finding:
    """The difference of the clocks: this node's is `offset_s` ahead of the master's, measured to `uncertainty_s`."""
    least_s = max(0.0, abs(offset_s) - uncertainty_s)
    level = Level.ERROR if least_s > CLOCK_ERROR_S else Level.WARNING if least_s > CLOCK_WARNING_S else Level.OK
    figure = f"{abs(offset_s):.0f} s" if abs(offset_s) >= 10 else f"{abs(offset_s):.1f} s"
    direction = "ahead of" if offset_s > 0 else "behind"
    if level is Level.OK:
        return Finding(check="clock", level=level, message=f"its clock is within {CLOCK_WARNING_S:g} s of the master's")
    return Finding(
        check="clock",
        level=level,
        message=f"its clock is {figure} {direction} the master's",
        remedy="let NTP set the clocks of both machines (for example chrony or systemd-timesyncd)",
    )


def disk(folder: str, space: Space) -> Finding:
    share = space.free / space.total if space.total else 0.0
    message = f"its data folder {folder} has {size(space.free)} free ({share:.0%} of {size(space.total)})"
    if space.free < DISK_ERROR_BYTES:
        level = Level.ERROR
    elif not space.has_inodes:
        level, message = Level.ERROR, f"its data folder {folder} has no inodes left"
    else:
        low = max(GIB // 4, min(space.total // 20, 10 * GIB))
        level = Level.WARNING if space.free < low else Level.OK
    larger = "move the data folder to a larger disk (ROLECALL_DATA; --data of `rolecall local`)"
    remedy = "" if level is Level.OK else f"free space below {folder}, or {larger}"
    return Finding(check="disk", level=level, message=message, remedy=remedy)


def unwritable(folder: str, reason: str) -> Finding:
    """The data folder can't be examined, or is no longer writable."""
    remedy = "give ROLECALL_DATA a folder that this user may write to, and restart the node"
    return Finding(check="disk", level=Level.ERROR, message=f"its data folder {folder}: {reason}", remedy=remedy)


def shm(total: int, *, computes: bool) -> Finding:
    """The size of shared memory, in which data loaders, NCCL and the workers exchange data."""
    message = f"its shared memory (/dev/shm) has {size(total)}"
    if not computes or total >= SHM_BYTES:
        return Finding(check="shm", level=Level.OK, message=message)
    return Finding(
        check="shm",
        level=Level.WARNING,
        message=f"{message}, which data loaders, NCCL and workers can fill",
        remedy=f"give it {size(SHM_BYTES)} or more: `shm_size` in compose, in Kubernetes a Memory emptyDir at /dev/shm",
    )


def refused(seconds: float, reason: str) -> Finding:
    """A past refusal of this node by its master. The workers continued meanwhile."""
    return Finding(
        check="master",
        level=Level.WARNING,
        message=f"it was refused for {seconds:.0f} s: {reason}",
        remedy="if no token was being rotated, check the proxies between this node and its master",
    )


def gpus(found: GpuInventory) -> Finding:
    """The GPUs that the node offers, compared with the installed ones."""
    message = f"it offers {found.usable} of {found.installed} GPUs" if found.installed else "its machine has no GPU"
    remedy = ""
    if found.failure:
        message = f"its GPUs can't be queried: {found.failure}"
        remedy = "repair the NVIDIA driver, then restart the node"
    elif found.installed and not found.usable and not found.disabled:
        # Offering some of its GPUs is a decision. Offering none is probably a mistake.
        remedy = (
            "start the container with GPUs (compose.gpu.yaml, or the gpu overlay of k8s/), set "
            "CUDA_VISIBLE_DEVICES to GPUs that it has, or set NVIDIA_VISIBLE_DEVICES=none to use none"
        )
    elif found.no_peer_access:
        pairs = ", ".join(f"{one}-{other}" for one, other in found.no_peer_access)
        message = (
            f"its GPUs can't reach each other's memory directly ({pairs}), so NCCL copies through the host's memory"
        )
        remedy = "check `nvidia-smi topo -p2p r` and the machine's IOMMU and ACS settings"
    return Finding(check="gpus", level=Level.WARNING if remedy else Level.OK, message=message, remedy=remedy)


def shared_gpus(count: int, workers: int) -> Finding:
    """The number of workers on each of the node's GPUs. It is a decision of the operator, so there is no remedy."""
    which = "its GPU is" if count == 1 else f"each of its {count} GPUs is"
    message = f"{which} for {workers} workers; process groups with two workers on one GPU use Gloo instead of NCCL"
    return Finding(check="shared gpus", level=Level.OK, message=message)


def sandbox(mode: str, version: int, error: OSError | None, no_filter: OSError | None = None) -> Finding:
    """The confinement of this node's workers by Landlock, `version` of its interface or the `error` without one.

    `no_filter` is the error if there can't be a filter of system calls as well.
    """
    if mode == "off":
        message = (
            "its workers are not confined (ROLECALL_SANDBOX=off): they read and write whatever the node's user can"
        )
        remedy = "set ROLECALL_SANDBOX to auto or required"
        return Finding(check="sandbox", level=Level.WARNING, message=message, remedy=remedy)
    if error is None:
        return _confined(version, no_filter)
    reasons = {
        errno.ENOSYS: (
            "its kernel has no Landlock",
            "run a kernel of 5.13 or newer, built with CONFIG_SECURITY_LANDLOCK",
        ),
        errno.EOPNOTSUPP: (
            "its kernel's Landlock is not enabled",
            "add landlock to the list of lsm= on the kernel's command line",
        ),
        errno.EPERM: ("its container may not use Landlock", "allow the system calls landlock_* in the seccomp profile"),
    }
    why, remedy = reasons.get(error.errno or 0, (f"Landlock fails ({error})", "read the kernel's log"))
    required = mode == "required"
    message = f"{why}, so its workers {'may not run (ROLECALL_SANDBOX=required)' if required else 'are not confined'}"
    return Finding(check="sandbox", level=Level.ERROR if required else Level.WARNING, message=message, remedy=remedy)


def _confined(version: int, no_filter: OSError | None) -> Finding:
    message, gaps, remedies = f"Landlock (version {version}) confines its workers", list[str](), list[str]()
    if version < _SIGNALS_SINCE:
        gaps.append("they can send signals to every process of the node's user")
        remedies.append("run a kernel of 6.12 or newer")
    if no_filter is not None:
        gaps.append(f"they can limit every process of the node's user (no seccomp filter: {no_filter.strerror})")
        remedies.append("run a kernel with CONFIG_SECCOMP_FILTER, and allow the system call seccomp")
    if not gaps:
        return Finding(check="sandbox", level=Level.OK, message=message)
    message, remedy = f"{message}, but {', and '.join(gaps)}", "; ".join(remedies)
    return Finding(check="sandbox", level=Level.WARNING, message=message, remedy=remedy)


def memory(available: int, total: int) -> Finding:
    message = f"it has {size(available)} of {size(total)} memory left"
    if available >= MEMORY_BYTES:
        return Finding(check="memory", level=Level.OK, message=message)
    remedy = "give the container more memory, or the node fewer slots (ROLECALL_SLOTS)"
    return Finding(check="memory", level=Level.WARNING, message=message, remedy=remedy)


def size(count: int) -> str:
    """Bytes in text, such as `64 MiB`."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}" if count < 1000 * unit else f"{count / unit:.0f} {name}"
    return f"{count} B"
