"""Values for the completion of a shell, from the cluster that the environment or `rolecall local` names."""

import os

from rolecall.client import Client, ClientError
from rolecall.client.connection import find

_MOST = 50


def job_ids(incomplete: str) -> list[tuple[str, str]]:
    """The newest jobs whose ids begin like this, with their states; none without a cluster.

    Names are chosen by other users, and shells evaluate the help text.
    """
    try:
        with _client() as client:
            found = client.jobs(_MOST)
    except ClientError:
        return []  # Completion must not print, and the command itself shows the error.
    return [(job.id, job.state.value) for job in found if job.id.startswith(incomplete)]


def workload_names(incomplete: str) -> list[tuple[str, str]]:
    """The workloads whose names begin like this, with their summaries; none without a cluster."""
    try:
        with _client() as client:
            found = client.workloads()
    except ClientError:
        return []
    return [(one.name, one.summary) for one in found if one.name.startswith(incomplete)]


def _client() -> Client:
    return Client(find(os.environ.get("ROLECALL_URL"), os.environ.get("ROLECALL_TOKEN")))
