"""The exit codes that scripts may rely on."""

from enum import IntEnum


class Exit(IntEnum):
    """What a command's exit code means; the numbers never change."""

    OK = 0
    """Done; of a followed job: it succeeded."""
    FAILED = 1
    """The followed job failed, `rolecall doctor` found an error, or `rolecall local` could not start."""
    USAGE = 2
    """The command line is wrong."""
    CANCELLED = 3
    """The followed job was cancelled."""
    NOT_FOUND = 4
    """There is no such job, workload or artifact."""
    REFUSED = 5
    """The master refused the request: the job is not legal, or its state or a limit of the token does not allow it."""
    UNREACHABLE = 6
    """The master does not answer."""
    UNAUTHORIZED = 7
    """The master does not accept the token, there is none, or it lacks the scope that the call needs."""
    INTERRUPTED = 130
    """Ctrl-C; a followed job goes on without us."""


class CommandError(Exception):
    """Ends the command with `code`, after `text` has been printed; the text says what to do."""

    def __init__(self, code: Exit, text: str) -> None:
        super().__init__(text)
        self.code = code
