"""The webhook that a master sends when a job ends, in the form of Standard Webhooks."""

from datetime import datetime
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

from rolecall.spec.model import Value
from rolecall.spec.redaction import HIDDEN, Redacted
from rolecall.spec.state import JobState

MAX_URL = 2000


def only_host(url: str) -> str:
    """The URL without what can be a secret, such as the paths of many chat services. Other text can be one itself."""
    try:
        parts = urlsplit(url)
        name = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        host = f"{name}:{parts.port}" if parts.port else name
    except ValueError:
        return HIDDEN
    return f"{parts.scheme}://{host}/{HIDDEN}" if parts.scheme and host else HIDDEN


ShownUrl = Annotated[str, AfterValidator(only_host)]
"""The URL of a webhook for people: its scheme and host."""


class NotifiedJob(Value):
    """A job that has ended."""

    id: str
    name: Redacted
    workload: str
    owner: str
    labels: dict[str, str]
    state: JobState
    reason: Redacted | None
    """The first line of the reason."""
    attempt: int
    created_at: datetime
    ended_at: datetime


class Notification(Value):
    """The body of a webhook."""

    type: str
    """`job.succeeded`, `job.failed` or `job.cancelled`."""
    timestamp: datetime
    data: NotifiedJob


class WebhookSecret(Value):
    """`GET /webhook-secret`."""

    secret: str
    """`whsec_` and a key in base64, for the libraries of Standard Webhooks."""
