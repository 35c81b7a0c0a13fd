"""`python -m rolecall.cli` is the `rolecall` command."""

from rolecall.cli import main

main()
