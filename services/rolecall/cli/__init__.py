"""The `rolecall` command, one file per command.

`client` calls the master, `output` prints for people, and `exits` has the exit codes for scripts.
"""

from rolecall.cli.app import main

__all__ = ["main"]
