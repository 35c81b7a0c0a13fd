"""The findings of checks: of a node, or of the link between two nodes."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import Field

from rolecall.spec.bounds import Text
from rolecall.spec.model import Value

VERSION = "version"
"""The check of a node's version."""


class Level(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    """Some jobs don't run, or don't run properly."""
    ERROR = "error"
    """Jobs can fail. A node with an error in its self-check gets no workers; an error of a link has no such effect."""

    @classmethod
    def _missing_(cls, value: object) -> "Level | None":
        """Treat a level of a newer release as a warning, which excludes no node."""
        return cls.WARNING if isinstance(value, str) else None


class Finding(Value):
    """The result of one check."""

    check: Text
    """The name of the check, for example `clock`, `disk`, `reach`."""
    level: Level
    message: Text
    """One line: the observation, with figures and units."""
    remedy: Text = ""
    """One line: how to fix it; empty if there is nothing to fix."""


class NodeFinding(Finding):
    """A finding about one or several nodes."""

    nodes: Annotated[tuple[Text, ...], Field(fail_fast=True)]
    """One node, or the two ends of a link. If the direction matters, the caller comes first."""


def version(own: str, master: str) -> Finding:
    """The finding about the version of a node, which the node and the master compare with the master's."""
    if own == master:
        return Finding(check=VERSION, level=Level.OK, message=f"it has the master's version {own}")
    return Finding(
        check=VERSION,
        level=Level.ERROR,
        message=f"its version is {own}, the master's is {master}",
        remedy="it takes no workers until both run the same image",
    )


def secret_files(readable: Sequence[Path]) -> Finding:
    """The finding about files with secrets; `readable` are those that other users can read."""
    if not readable:
        return Finding(check="secret files", level=Level.OK, message="no other user can read its files with secrets")
    return Finding(
        check="secret files",
        level=Level.WARNING,
        message=f"every user can read its files with secrets: {', '.join(map(str, readable))}",
        remedy="chmod o-r on each; in Kubernetes, set `defaultMode: 0440` on the secret's volume",
    )
