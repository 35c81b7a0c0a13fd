"""The one tree of errors. A class's docstring says what it means; an instance's text says what to do."""


class RolecallError(Exception):
    """The base of every error that Rolecall raises on purpose.

    `retryable` says whether trying the same job again can cure it; an attempt's failure carries it to the master.
    """

    retryable = True


class SettingsError(RolecallError):
    """The container's environment is missing something or holds a value that is not legal."""

    retryable = False


class NotFound(RolecallError):
    """There is no such job, node, workload, checkpoint or artifact."""


class Conflict(RolecallError):
    """The request contradicts what is already stored."""


class IllegalTransition(Conflict):
    """A state can't be left in the way that was asked."""


class StaleAttempt(Conflict):
    """The message belongs to an attempt that is no longer the job's current one; it is ignored."""


class LimitReached(RolecallError):
    """The token has reached one of its limits; the text names the limit."""

    retryable = False


class StorageLimitReached(LimitReached):
    """The jobs of a token store so much that an upload is refused."""


class InvalidJob(RolecallError):
    """A job's spec is not legal; `problems` lists every field with what was given and what is legal."""

    retryable = False

    def __init__(self, problems: list["dict[str, str]"]) -> None:
        super().__init__("; ".join(f"{problem['field']}: {problem['message']}" for problem in problems))
        self.problems = problems


class CheckTimeout(RolecallError):
    """A request could not be checked in time; it was neither accepted nor found wrong."""


class BrokenWorkload(RolecallError):
    """A workload's own check ended with an error that says nothing about the job."""

    retryable = False


class WorkloadError(RolecallError):
    """The job can't succeed as it was asked for, however often it is tried."""

    retryable = False


class InputError(WorkloadError):
    """A file, column or row of the job's input is missing, unreadable or not what the parameters say."""


class NonFiniteLoss(WorkloadError):
    """The loss became NaN or infinite."""


class QuotaExceeded(WorkloadError):
    """The job would store more than the cluster's operator allows one job."""


class CheckpointError(RolecallError):
    """A checkpoint's part is missing, damaged or does not fit the gang that wants to resume from it."""


class BlobsUnavailable(CheckpointError):
    """The blob store, or the master in front of it, takes no files at the moment; the same call may succeed later."""


class NoSuchBlob(CheckpointError):
    """There is nothing of that name in the blob store."""


class DamagedCheckpoint(CheckpointError):
    """The checkpoint that the attempt resumes from is not what was written; the one before it may be whole."""


class RendezvousTimeout(RolecallError):
    """Not every worker of the gang arrived in time; the text names who is missing."""


class UnreachablePeer(RolecallError):
    """A node of the gang can't reach another on the ports that the gang uses; the text names both and what to open."""


class PeerLost(RolecallError):
    """Another worker of the gang vanished; it, and not this worker, is the cause."""


class IntrudedGang(RolecallError):
    """Somebody who doesn't know the attempt's secret took part in its rendezvous: the gang's network is not private."""


class SandboxUnavailable(RolecallError):
    """The operator requires a sandbox for workers, and this node's kernel has none."""


class Stopped(RolecallError):
    """The gang was asked to stop and leaves between two steps; not a failure."""
