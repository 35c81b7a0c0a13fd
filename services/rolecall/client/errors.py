"""The errors of calls to a master. Their texts are for people, and say what to do."""

from rolecall.spec.errors import RolecallError


class ClientError(RolecallError):
    """A call failed."""


class ConfigurationError(ClientError):
    """The address, the token or a local file can't be used."""


class UnknownName(ClientError):
    """The job, workload, checkpoint or artifact does not exist, or the token can't see it."""


class Refused(ClientError):
    """The master refused the request: it is invalid, or the job's state or a limit of the token does not allow it."""


class Unreachable(ClientError):
    """No master answers, or it can't answer now; a retry can succeed."""


class Unauthorized(ClientError):
    """The token is missing or invalid, or lacks the required scope."""
