"""Small volumes, to be filled by a test. They need root."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def mounted(path: Path, size: str = "8m") -> Iterator[Path]:
    """A volume of this size at `path`."""
    path.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        # Lazily, because a program that is being killed may still hold a file.
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@contextmanager
def filled(volume: Path) -> Iterator[None]:
    """Fill the volume to its last byte; when left, the space is free again."""
    path = volume / "filling"
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(1 << 12)):
            pass
    try:
        yield
    finally:
        path.unlink()
