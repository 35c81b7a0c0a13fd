"""The names of the files in shared memory through which workers of one machine exchange tensors."""

import hashlib
from collections.abc import Iterable
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
    return f"{_prefix(launch, rank)}{_digest(f'{launch.secret}/{rank}/{what}')}"


def _prefix(launch: WorkerLaunch, rank: int) -> str:
    # With a part of the gang alone: gangs of tests have equal jobs.
    return f"{_prefix_of(launch.job, launch.attempt, rank)}{_digest(launch.secret)[:8]}-"


def _prefix_of(job: str, attempt: object, rank: object) -> str:
    return f"rolecall-{job}-{attempt}-{rank}-"


def _digest(text: str) -> str:
    return hashlib.sha256(f"shared-memory/{text}".encode()).hexdigest()[:16]


def remove_files(launch: WorkerLaunch) -> None:
    """Remove the names that remain of a worker that has ended: that of its presence, and those of blocks that no
    receiver has opened. It can take seconds, because jobs can fill the folder."""
    _remove((_prefix(launch, launch.worker.rank),))


def remove_files_of(workers: Iterable[tuple[str, str, str]]) -> None:
    """As `remove_files`, for the job, attempt and rank of each worker."""
    _remove(tuple(_prefix_of(*worker) for worker in workers))


def _remove(prefixes: tuple[str, ...]) -> None:
    with suppress(OSError):  # There is no such folder.
        for path in SHARED_MEMORY.iterdir():
            if path.name.startswith(prefixes):
                with suppress(OSError):  # It is a folder, or another user's.
                    path.unlink()
