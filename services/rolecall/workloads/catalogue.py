"""Finds workloads by their entry points: built-in ones and those of other installed packages."""

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from rolecall.spec.errors import NotFound
from rolecall.spec.workload import Workload

GROUP = "rolecall.workloads"


def installed() -> dict[str, EntryPoint]:
    """The entry points of all workloads of installed packages, by name; imports none of them."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def load(name: str) -> Workload[Any]:
    """Import a workload's declaration.

    Raises `NotFound` if no installed package declares it.
    """
    entry = installed().get(name)
    if entry is None:
        raise NotFound(f"no installed package declares the workload {name!r} in the entry-point group {GROUP!r}")
    return entry.load()
