"""Small volumes, to be filled by a test. They need root."""

import subprocess
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import disk_usage

from tests.prerequisites import unavailable


@contextmanager
def mounted(path: Path, size: str = "8m") -> Generator[Path]:
    """A volume of this size at `path`."""
    path.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        unavailable("a small volume can't be mounted here: it needs root and CAP_SYS_ADMIN")
    try:
        yield path
    finally:
        # Lazily, because a program that is being killed may still hold a file.
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@contextmanager
def filled(volume: Path, but: int = 0) -> Generator[None]:
    """Fill the volume to its last byte, or leave some bytes free; when left, the space is free again."""
    path = volume / f"filling-but-{but}"
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while (not but or disk_usage(volume).free > but) and file.write(bytes(1 << 12)):
            pass
    try:
        yield
    finally:
        path.unlink()
