"""The exit codes, which are stable for scripts."""

from enum import IntEnum

from rolecall.client import ClientError, ConfigurationError, Refused, Unauthorized, UnknownName, Unreachable


class Exit(IntEnum):
    """The meaning of a command's exit code; the numbers never change."""

    OK = 0
    """Success; with a followed job or a sweep: all jobs succeeded."""
    FAILED = 1
    """The followed job or a job of a sweep failed, `rolecall doctor` found an error, `rolecall local` could not
    start, or the user declined a deletion."""
    USAGE = 2
    """The command line is invalid."""
    CANCELLED = 3
    """The followed job or a job of a sweep was cancelled."""
    NOT_FOUND = 4
    """The job, workload or artifact does not exist."""
    REFUSED = 5
    """The master refused the request: the job is invalid, or its state or a limit of the token does not allow it."""
    UNREACHABLE = 6
    """The master or an MLflow server does not answer or fails, or no cluster is configured."""
    UNAUTHORIZED = 7
    """The token is missing or invalid, or lacks the required scope."""
    INTERRUPTED = 130
    """Interrupted by Ctrl-C, which Typer handles; a followed job continues, the running job of a sweep is cancelled."""


class CommandError(Exception):
    """Ends the command with `code` after printing `text`, which says what to do."""

    def __init__(self, code: Exit, text: str) -> None:
        super().__init__(text)
        self.code = code


_CODES: dict[type[ClientError], Exit] = {
    ConfigurationError: Exit.USAGE,
    UnknownName: Exit.NOT_FOUND,
    Refused: Exit.REFUSED,
    Unreachable: Exit.UNREACHABLE,
    Unauthorized: Exit.UNAUTHORIZED,
}


def exit_code(error: CommandError | ClientError) -> Exit:
    """The exit code of a command that ends with `error`."""
    return error.code if isinstance(error, CommandError) else _CODES.get(type(error), Exit.FAILED)
