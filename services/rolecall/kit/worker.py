"""The context of a role's `run(context)`, and helpers for RPC between the workers of a gang."""

from rolecall.runtime.context import WorkerContext, current, worker_name
from rolecall.runtime.remote import Mailbox, StepBarrier, passed_on

__all__ = ["Mailbox", "StepBarrier", "WorkerContext", "current", "passed_on", "worker_name"]
