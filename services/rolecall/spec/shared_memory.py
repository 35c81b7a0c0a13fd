"""The names of the files in shared memory through which workers of one machine exchange tensors."""

import hashlib
from contextlib import suppress
from pathlib import Path

from rolecall.spec.plan import WorkerLaunch

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the kernel's
"""The folder of shared memory."""


def presence_name(launch: WorkerLaunch, rank: int) -> str:
    """The name of the empty file that says that the worker `rank` of this gang uses this shared memory."""
    return _name(launch, rank, "present")


def block_name(launch: WorkerLaunch, number: int) -> str:
    """The name of a worker's block `number` in `SHARED_MEMORY`. The receiver of the first tensor removes it."""
    return _name(launch, launch.worker.rank, f"block-{number}")


def _name(launch: WorkerLaunch, rank: int, what: str) -> str:
    # Without the secret of the attempt, no other job can guess a name and take it first.
    digest = hashlib.sha256(f"shared-memory/{launch.secret}/{rank}/{what}".encode()).hexdigest()[:16]
    return f"{_prefix(launch, rank)}{digest}"


def _prefix(launch: WorkerLaunch, rank: int) -> str:
    return f"rolecall-{launch.job}-{launch.attempt}-{rank}-"


def remove_files(launch: WorkerLaunch) -> None:
    """Remove the names that remain of a worker that has ended: that of its presence, and those of blocks that no
    receiver has opened. It can take seconds, because jobs can fill the folder."""
    prefix = _prefix(launch, launch.worker.rank)
    with suppress(OSError):  # There is no such folder.
        for path in SHARED_MEMORY.iterdir():
            if path.name.startswith(prefix):
                with suppress(OSError):  # It is a folder, or another user's.
                    path.unlink()
