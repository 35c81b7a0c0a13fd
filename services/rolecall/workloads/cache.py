"""What a node makes once from its input files and keeps: built under a lock, and put in place whole by a rename.

Nothing in a cache changes afterwards, so that all workers of a node may map it into memory.
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path


def build_once(folder: Path, key: str, build: Callable[[Path], None]) -> Path:
    """The cache `key` below `folder`; if it isn't there `build` fills an empty folder, and others who want it wait.

    `key` names everything that the content depends on, e.g. by a hash.
    """
    target = folder / key
    with _locked(target.with_suffix(".lock")):
        if not target.exists():
            _build_in_place(target, build)
    return target


@contextmanager
def _locked(path: Path) -> Generator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel lets go of it if this process dies
        yield


def _build_in_place(target: Path, build: Callable[[Path], None]) -> None:
    draft = target.with_suffix(".draft")
    shutil.rmtree(draft, ignore_errors=True)  # left by a builder that died
    draft.mkdir()
    build(draft)
    os.rename(draft, target)
