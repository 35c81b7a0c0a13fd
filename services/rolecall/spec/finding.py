"""The findings of checks: of a node, or of the link between two nodes."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from rolecall.spec.bounds import Text
from rolecall.spec.model import Value


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    """Jobs run, but not as they should, or not all of them."""
    ERROR = "error"
    """No job can be trusted to run there. A node that finds one in itself gets no workers; one of a link bars none."""

    @classmethod
    def _missing_(cls, value: object) -> "Level | None":
        """A level of a newer release is shown, and bars nobody."""
        return cls.WARNING if isinstance(value, str) else None


class Finding(Value):
    """The result of one check."""

    check: Text
    """The name of the check, for example `clock`, `disk`, `reach`."""
    level: Level
    message: Text
    """One line: what is, with figures and units."""
    remedy: Text = ""
    """One line: what to do about it; empty when there is nothing to do."""


class NodeFinding(Finding):
    """A finding about one or several nodes."""

    nodes: tuple[Text, ...]
    """One node, or the two ends of a link: first the one that calls, where that matters."""


def secret_files(readable: Sequence[Path]) -> Finding:
    """Whether other users can read the files that a program takes its secrets from; `readable` are those."""
    if not readable:
        return Finding(check="secret files", level=Level.OK, message="no other user can read its files with secrets")
    return Finding(
        check="secret files",
        level=Level.WARNING,
        message=f"every user can read its files with secrets: {', '.join(map(str, readable))}",
        remedy="chmod o-r on each; in Kubernetes, set `defaultMode: 0440` on the secret's volume",
    )
