"""The error classes. A class's docstring describes its meaning; an instance's text says what to do."""

from collections.abc import Iterable, Mapping

PROBLEM_PREFIX = "urn:rolecall:problem:"
"""The beginning of `type` in each problem document of a master, which no proxy's answer has."""
STANDBY = "standby"
"""The rest of `type` in the problem documents of a master that does not lead yet."""
_MIN_NAME = 3


class RolecallError(Exception):
    """The base class of all errors that Rolecall raises.

    `retryable` says whether a retry of the same job can succeed; an attempt's failure reports it to the master.
    """

    retryable = True


class SettingsError(RolecallError):
    """A variable of the container's environment is missing or has an invalid value."""

    retryable = False


class MissingPackage(SettingsError):
    """An optional package is not installed; the text says how to install it."""


class TrackerError(RolecallError):
    """An experiment tracker, such as an MLflow server, fails or refuses what it should store.

    `status` is the HTTP status that describes the error; 503 if the tracker can't be reached.
    """

    def __init__(self, message: str, status: int = 503) -> None:
        super().__init__(message)
        self.status = status


class NotFound(RolecallError):
    """The job, node, workload, checkpoint or artifact does not exist."""


class Conflict(RolecallError):
    """The request conflicts with stored data."""


class IllegalTransition(Conflict):
    """The requested state transition is not allowed."""


class StaleAttempt(Conflict):
    """The message belongs to an attempt that is no longer the job's current one, and is ignored."""


class LimitReached(RolecallError):
    """The token has reached one of its limits; the text names the limit."""

    retryable = False


class StorageLimitReached(LimitReached):
    """An upload of a worker is refused because the jobs of its token store far more than the token may store."""


def about_field(field: str, message: str) -> str:
    """A message after the field's full name. If it begins with the field's own name, the full one replaces that."""
    parts = field.split(".")
    for depth in range(len(parts)):
        name = ".".join(parts[depth:])
        rest = message.removeprefix(name)
        # A short name can be a word, such as "a".
        if len(name) >= _MIN_NAME and rest != message and rest.startswith((" ", ": ", ", ")):
            return field + rest
    return f"{field}: {message}"


def about_fields(errors: Iterable[Mapping[str, str]]) -> str:
    """The messages of field errors in one line."""
    # A question, such as "did you mean …?", ends with its own mark.
    return "; ".join(about_field(one["field"], one["message"]) for one in errors).replace("?; ", "? ")


class InvalidRequest(RolecallError):
    """A request is invalid; `field_errors` lists every invalid field with the given value and the valid values."""

    retryable = False

    def __init__(self, field_errors: list["dict[str, str]"]) -> None:
        super().__init__(about_fields(field_errors))
        self.field_errors = field_errors


class InvalidJob(InvalidRequest):
    """A job's spec is invalid."""


class CheckTimeout(RolecallError):
    """The check of a request took too long; the request is neither accepted nor found invalid."""


class BrokenWorkload(RolecallError):
    """The check of a workload failed with an internal error, which is not an error of the job."""

    retryable = False


class WorkloadError(RolecallError):
    """The job can't succeed with these parameters, so a retry does not help."""

    retryable = False


class InputError(WorkloadError):
    """A file, column or row of the job's input is missing, unreadable or inconsistent with the parameters."""


class NonFiniteLoss(WorkloadError):
    """The loss became NaN or infinite."""


class QuotaExceeded(WorkloadError):
    """The job would exceed the operator's storage limit per job."""


class CheckpointError(RolecallError):
    """A part of a checkpoint is missing, damaged or incompatible with the gang that resumes from it."""


class BlobsUnavailable(CheckpointError):
    """The blob store, or the master in front of it, temporarily accepts no files; a retry can succeed."""


class NoSuchBlob(CheckpointError):
    """The blob store has no blob with that name."""


class DamagedCheckpoint(CheckpointError):
    """The checkpoint that the attempt resumes from is damaged; the previous one can be intact."""


class RendezvousTimeout(RolecallError):
    """Not every worker of the gang joined the rendezvous in time; the text names the missing workers."""


class UnreachablePeer(RolecallError):
    """A node of the gang can't reach another on the ports that the gang uses; the text names both and what to open."""


class PeerLost(RolecallError):
    """Another worker of the gang disappeared; that worker is the cause, not this one."""


class CallTimeout(RolecallError):
    """An RPC call between two workers took longer than the job allows; the text names the parameter with the limit."""


class IntrudedGang(RolecallError):
    """A program without the attempt's secret took part in its rendezvous: the gang's network is not private."""


class SandboxUnavailable(RolecallError):
    """The operator requires a sandbox for workers, and this node's kernel has none."""


class Stopped(RolecallError):
    """The gang stops after a step because of a stop request. This is not a failure."""
