"""Ctrl-C ends the command quietly."""

import subprocess
import sys

INTERRUPTED_IMPORT = """
import sys

class Interrupting:
    def find_spec(self, name, *_):
        if name == "typer":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
from rolecall.cli import main
main()
"""


def test_ctrl_c_during_the_imports_prints_no_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
