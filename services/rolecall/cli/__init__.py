"""The `rolecall` command, a file for each command or a few similar ones.

`client` calls the master, `output` prints for people, and `exits` has the exit codes for scripts.
"""

import sys

_INTERRUPTED = 130
"""`Exit.INTERRUPTED`, which would be imported too late."""


def main() -> None:
    """Run the command line. Ctrl-C during its imports, which take most of a short command's time, ends it quietly."""
    try:
        from rolecall.cli.app import main as run  # noqa: PLC0415 - see above

        run()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
