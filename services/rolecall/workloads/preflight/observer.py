"""What the worker on a observer node does: the same as on every other."""

from rolecall.workloads.preflight.examination import run

__all__ = ["run"]
