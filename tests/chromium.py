"""Chromium for tests, unaffected by the containers of other tests.

Chromium aborts connections with `ERR_NETWORK_CHANGED`, even those to 127.0.0.1, whenever an address of the machine
changes. It learns of that from a netlink socket. Without one, it assumes that the networks never change.
"""

import errno
import shlex
import shutil
import socket
import sys
from pathlib import Path

from tests.prerequisites import unavailable
from tests.security.forbidding import FORBIDDING, SOCKET

_NAMES = ("chromium-headless-shell", "chromium", "google-chrome")
_RUN = f"""{FORBIDDING}
import os, sys
forbid({SOCKET}, {errno.EAFNOSUPPORT}, {int(socket.AF_NETLINK)})
os.execv(sys.argv[1], sys.argv[1:])
"""


def find_chromium() -> str:
    """The path of the installed Chromium; without one, the test is skipped, or fails in CI."""
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        unavailable("there is no Chromium: apt-get install chromium-headless-shell")
    return found


def steady_chromium(folder: Path) -> Path:
    """A program in `folder` that runs Chromium without netlink sockets."""
    program = folder / "chromium"
    program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-c", _RUN, find_chromium()])} "$@"\n')
    program.chmod(0o755)
    return program
