"""Downloads the wheels that these tests need in addition to torch: `python3 -m tests.gpu.wheels build/wheels`.

Versions and hashes are those of a lock whose torch is the machine's: torchvision must fit it. Pyarrow is not among
them, because it is as large as all others together: the tests of `embedding-ddp` generate their rows.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).parent
LOCK = HERE.parents[1] / "requirements-lowest.lock"
MAX_BYTES = 60_000_000
_PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 26, 24, 17, 12, 5)]


def names() -> list[str]:
    """The packages in wheels.txt."""
    lines = (HERE / "wheels.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def pinned(lock: str, wanted: Iterable[str]) -> str:
    """The entries of `lock` for these packages, with their hashes. Raises `ValueError` if one has none."""
    entries = re.findall(r"^[^\s#].*(?:\n[ \t]+.*)*", lock, re.MULTILINE)
    by_name: dict[str, list[str]] = {}
    for entry in entries:
        by_name.setdefault(re.split(r"[=\[; ]", entry, maxsplit=1)[0], []).append(entry)
    if missing := [name for name in wanted if name not in by_name]:
        raise ValueError(f"{', '.join(missing)}: not in {LOCK.name}; remove them from wheels.txt, or run make lock")
    return "\n".join(entry for name in wanted for entry in by_name[name]) + "\n"


def download(target: Path, python: str, wanted: Iterable[str]) -> int:
    """Download the wheels for this version of Python on x86-64. Returns their bytes."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write(pinned(LOCK.read_text(), wanted))
        requirements.flush()
        platforms = [option for platform in _PLATFORMS for option in ("--platform", platform)]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--require-hashes", "--python-version", python, *platforms, "--dest", str(target)]
        subprocess.run([*command, "--requirement", requirements.name], check=True)
    return sum(wheel.stat().st_size for wheel in target.glob("*.whl"))


def main(arguments: list[str]) -> int:
    """Download, and fail if the folder is larger than what can be carried to the machine."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.gpu.wheels", description=__doc__)
    parser.add_argument("target", type=Path, help="the folder to fill")
    parser.add_argument("--python", default="3.12", help="the version of Python on the machine with the GPU")
    options = parser.parse_args(arguments)
    size = download(options.target, options.python, names())
    print(f"{len(list(options.target.glob('*.whl')))} wheels, {size / 1e6:.1f} MB, in {options.target}")
    if size > MAX_BYTES:
        sys.exit(f"that is more than {MAX_BYTES / 1e6:.0f} MB; remove packages from tests/gpu/wheels.txt")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
