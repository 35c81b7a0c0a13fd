"""Folders nested deeper than a process has descriptors, frames of Python, or characters for a path."""

import itertools
import os
import resource
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def few_descriptors(left: int) -> Generator[None]:
    """This process may open only `left` more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = (number for number in range(soft) if not os.path.lexists(f"/proc/self/fd/{number}"))
    highest = next(itertools.islice(free, left - 1, None))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def nested(folder: Path, depth: int) -> Generator[None]:
    """Nested folders of this depth, in a new folder. Deletes what is left, because pytest can't."""
    folder.mkdir()
    outer = os.open(folder, os.O_PATH)
    for _ in range(depth):
        os.mkdir("nested", dir_fd=outer)
        inner = os.open("nested", os.O_PATH, dir_fd=outer)
        os.close(outer)
        outer = inner
    os.close(outer)
    try:
        yield
    finally:
        subprocess.run(["rm", "-rf", folder], check=True)
