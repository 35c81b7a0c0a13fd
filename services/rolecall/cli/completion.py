"""Values for the completion of a shell, from the cluster that the environment or `rolecall local` names."""

import os
import re
from collections.abc import Callable
from typing import TypeVar

import typer

from rolecall.client import Client, ClientError
from rolecall.client.connection import find

_T = TypeVar("_T")
_MOST = 50
# A master can answer anything. Zsh evaluates values and help texts, and bash inserts values without quotes.
_SAFE_VALUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_UNSAFE_IN_HELP = re.compile(r"[^A-Za-z0-9 .,:()-]")


def job_ids(incomplete: str) -> list[tuple[str, str]]:
    """The newest jobs whose ids begin like this, with their states; none without a cluster."""
    found = _ask(lambda client: client.jobs(_MOST))
    return [(job.id, job.state.value) for job in found if _is_offered(job.id, incomplete)]


def workload_names(incomplete: str) -> list[tuple[str, str]]:
    """The workloads whose names begin like this, with their summaries; none without a cluster."""
    found = _ask(Client.workloads)
    return [(one.name, _UNSAFE_IN_HELP.sub("", one.summary)) for one in found if _is_offered(one.name, incomplete)]


def declared_names(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The metrics that the workload of the named job declares, with their help; none without a cluster."""
    # The option lacks its value yet, so that the arguments before it are not assigned to parameters.
    job = context.params.get("job") or next(iter(context.args), None)
    found = _ask(lambda client: client.workload(client.job(job).workload).metrics) if job else []
    names = [(name, one.help) for one in found for name in one.reported.values()]
    return [(name, _UNSAFE_IN_HELP.sub("", text)) for name, text in names if _is_offered(name, incomplete)]


def _is_offered(value: str, incomplete: str) -> bool:
    return value.startswith(incomplete) and _SAFE_VALUE.fullmatch(value) is not None


def _ask(question: Callable[[Client], list[_T]]) -> list[_T]:
    try:
        with Client(find(os.environ.get("ROLECALL_URL"), os.environ.get("ROLECALL_TOKEN"))) as client:
            return question(client)
    except ClientError:
        return []  # Completion must not print, and the command itself shows the error.
