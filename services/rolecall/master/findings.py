"""What is weak in the master's settings, and what to do about it. Pure; `rolecall doctor` shows it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from rolecall.settings import MasterSettings
from rolecall.spec.finding import Finding, Level, secret_files

SHORT = 32
"""Characters; 32 random hexadecimal digits are 128 bits, which nobody guesses."""


def weaknesses(settings: MasterSettings, readable: Sequence[Path]) -> Iterator[Finding]:
    """A finding for each weak setting; one that is `ok` for each check without any.

    `readable` are the files with secrets that other users can read.
    """
    short = [name for name, secret in settings.tokens.items() if len(secret.get_secret_value()) < SHORT]
    for name in short:
        message = f"{name} has fewer than {SHORT} characters"
        yield Finding(
            check="tokens", level=Level.WARNING, message=message, remedy="take a random one: openssl rand -hex 32"
        )
    if not short:
        yield Finding(check="tokens", level=Level.OK, message=f"the built-in tokens have {SHORT} characters or more")
    if settings.metrics_token is None:
        message = "ROLECALL_METRICS_TOKEN is not set, so Prometheus needs a token that opens more than metrics"
        remedy = "set it on the master and all nodes, and give Prometheus nothing else"
        yield Finding(check="metrics token", level=Level.WARNING, message=message, remedy=remedy)
    else:
        yield Finding(check="metrics token", level=Level.OK, message="Prometheus has a token of its own")
    yield secret_files(readable)
