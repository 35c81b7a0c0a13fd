"""Values for the completion of a shell, from the cluster that the environment or `rolecall local` names."""

import os
import re

from rolecall.client import Client, ClientError
from rolecall.client.connection import find

_MOST = 50
# A master can answer anything. Zsh evaluates values and help texts, and bash inserts values without quotes.
_SAFE_VALUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_UNSAFE_IN_HELP = re.compile(r"[^A-Za-z0-9 .,:()-]")


def job_ids(incomplete: str) -> list[tuple[str, str]]:
    """The newest jobs whose ids begin like this, with their states; none without a cluster."""
    try:
        with _client() as client:
            found = client.jobs(_MOST)
    except ClientError:
        return []  # Completion must not print, and the command itself shows the error.
    return [(job.id, job.state.value) for job in found if _is_offered(job.id, incomplete)]


def workload_names(incomplete: str) -> list[tuple[str, str]]:
    """The workloads whose names begin like this, with their summaries; none without a cluster."""
    try:
        with _client() as client:
            found = client.workloads()
    except ClientError:
        return []
    return [(one.name, _UNSAFE_IN_HELP.sub("", one.summary)) for one in found if _is_offered(one.name, incomplete)]


def _is_offered(value: str, incomplete: str) -> bool:
    return value.startswith(incomplete) and _SAFE_VALUE.fullmatch(value) is not None


def _client() -> Client:
    return Client(find(os.environ.get("ROLECALL_URL"), os.environ.get("ROLECALL_TOKEN")))
