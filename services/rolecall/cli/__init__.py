"""The `rolecall` command, one file per command.

`client` talks to the master, `output` to people, `exits` to scripts.
"""

from rolecall.cli.app import main

__all__ = ["main"]
