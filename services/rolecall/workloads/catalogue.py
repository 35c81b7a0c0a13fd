"""Finds workloads: those of the house and those of installed packages, all by one entry-point group."""

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from rolecall.spec.errors import NotFound
from rolecall.spec.workload import Workload

GROUP = "rolecall.workloads"


def installed() -> dict[str, EntryPoint]:
    """Every workload that some installed package declares, by name; nothing is imported yet."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def load(name: str) -> Workload[Any]:
    """Import the torch-free half of one workload.

    Raises `NotFound` when no installed package declares it.
    """
    entry = installed().get(name)
    if entry is None:
        raise NotFound(f"no installed package declares the workload {name!r} in the entry-point group {GROUP!r}")
    return entry.load()
