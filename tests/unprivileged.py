"""Code that runs without root's rights, to which the modes of files are no obstacle."""

import os
import subprocess
import sys
from pathlib import Path

_UID = 10001
_DROP = f"""
import os, sys
os.chdir(sys.argv[1])
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid({_UID})
    os.setuid({_UID})
"""


def run_unprivileged(folder: Path, imports: str, code: str) -> str:
    """Run Python code in `folder`, which becomes its user's, and return what it prints.

    That user may not read the interpreter's files, so `imports` run before. The paths in `code` have to be relative.
    """
    if os.geteuid() == 0:
        os.chown(folder, _UID, _UID)
    command = [sys.executable, "-c", f"{imports}\n{_DROP}\n{code}", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr
