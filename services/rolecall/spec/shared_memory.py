"""The names of the files in shared memory through which workers of one machine exchange tensors."""

import hashlib
from pathlib import Path

from rolecall.spec.plan import WorkerLaunch

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the kernel's
"""The folder of shared memory."""
MAX_BLOCKS = 1024
"""The most blocks that a worker creates in its life."""


def presence_name(launch: WorkerLaunch, rank: int) -> str:
    """The name of the empty file that says that the worker `rank` of this gang uses this shared memory."""
    return _name(launch, rank, "present")


def block_name(launch: WorkerLaunch, number: int) -> str:
    """The name of a worker's block `number` in `SHARED_MEMORY`. The receiver of the first tensor removes it."""
    return _name(launch, launch.worker.rank, str(number))


def _name(launch: WorkerLaunch, rank: int, what: str) -> str:
    # Without the secret of the attempt, no other job can guess the name and take it first.
    digest = hashlib.sha256(f"shared-memory/{launch.secret}/{rank}".encode()).hexdigest()[:16]
    return f"rolecall-{launch.job}-{launch.attempt}-{rank}-{digest}-{what}"


def remove_files(launch: WorkerLaunch) -> None:
    """Remove the names that remain of a worker that has ended: that of its presence, and those of blocks that no
    receiver has opened."""
    names = [presence_name(launch, launch.worker.rank), *(block_name(launch, number) for number in range(MAX_BLOCKS))]
    for name in names:
        try:
            (SHARED_MEMORY / name).unlink()
        except OSError:  # It doesn't exist, or another program has taken the name.
            continue
