"""Findings about weak settings of the master, with remedies, for `rolecall doctor`. Pure."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from rolecall.master.access import Scrapes
from rolecall.settings.master import MasterSettings
from rolecall.spec.finding import Finding, Level, secret_files

SHORT = 32
"""The minimum length of a token: 32 random hexadecimal digits are 128 bits."""


def weaknesses(settings: MasterSettings, readable: Sequence[Path], scrapes: Scrapes) -> Iterator[Finding]:
    """The findings: one for each weak setting, and an `ok` for each check without one.

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
    yield _metrics_token(settings, scrapes)
    yield secret_files(readable)
    yield _retention(settings)


def _metrics_token(settings: MasterSettings, scrapes: Scrapes) -> Finding:
    found: list[str] = []
    if settings.metrics_token is None:
        found.append("ROLECALL_METRICS_TOKEN is not set, so Prometheus needs a token that opens more than metrics")
    if scrapes.count:
        calls = "1 call" if scrapes.count == 1 else f"{scrapes.count} calls"
        last = f"the last one the token {scrapes.token} from {scrapes.address}"
        found.append(f"since this master's start, {calls} of /metrics used an admin token, {last}")
    if not found:
        return Finding(check="metrics token", level=Level.OK, message="Prometheus has a token of its own")
    remedy = (
        "set ROLECALL_METRICS_TOKEN on the master and all nodes, and give Prometheus nothing else"
        if settings.metrics_token is None
        else "give Prometheus the token of ROLECALL_METRICS_TOKEN, and nothing else"
    )
    return Finding(check="metrics token", level=Level.WARNING, message="; ".join(found), remedy=remedy)


def _retention(settings: MasterSettings) -> Finding:
    if settings.keep_days:
        days = f"{settings.keep_days:g} days"
        return Finding(check="retention", level=Level.OK, message=f"ended jobs are deleted after {days}")
    return Finding(
        check="retention",
        level=Level.WARNING,
        message="ended jobs are never deleted, so the disk of the master's data folder can fill up",
        remedy="set ROLECALL_KEEP_DAYS on the master, or delete jobs with rolecall prune",
    )
