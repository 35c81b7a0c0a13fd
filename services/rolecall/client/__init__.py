"""The Python client of a master's HTTP API, for scripts, notebooks and the `rolecall` command.

`connect()` finds the cluster like the command does. A `Client` has a method for each call. A `Job` has the methods of
one job: it waits for the job, follows it, and reads and plots its metrics.
"""

import os

from rolecall.client.client import Client
from rolecall.client.connection import Connection, find
from rolecall.client.errors import (
    ClientError,
    ConfigurationError,
    Refused,
    Unauthorized,
    UnknownName,
    Unreachable,
)
from rolecall.client.job import Job

__all__ = [
    "Client",
    "ClientError",
    "ConfigurationError",
    "Connection",
    "Job",
    "Refused",
    "Unauthorized",
    "UnknownName",
    "Unreachable",
    "connect",
]


def connect(url: str | None = None, token: str | None = None) -> Client:
    """A client of the master at `url`.

    By default, the address and the token come from `ROLECALL_URL` and `ROLECALL_TOKEN`, or from `rolecall local`.
    """
    given = token or os.environ.get("ROLECALL_TOKEN")
    return Client(find(url or os.environ.get("ROLECALL_URL"), given, "the argument token"))
