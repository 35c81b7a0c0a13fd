"""The context of a role's `run(context)`, and helpers for the workers of a gang: RPC, and common decisions.

`Agreement.after` returns the same `Decision` on all ranks of the process group after a step. `TrainingLoop` uses it;
other loops with a process group call it to save and stop after the same step on all ranks.

`call`, `call_sync`, `wait` and `wait_all` are torch's, but counted in the worker's metrics. Record others with
`measurements`.
"""

from rolecall.runtime.agreement import Agreement, Decision
from rolecall.runtime.context import WorkerContext, current, worker_name
from rolecall.runtime.measuring import measured_step, measurements
from rolecall.runtime.remote import Mailbox, StepBarrier, call, call_limit, call_sync, passed_on, wait, wait_all
from rolecall.spec.metric import Phase

__all__ = [
    "Agreement",
    "Decision",
    "Mailbox",
    "Phase",
    "StepBarrier",
    "WorkerContext",
    "call",
    "call_limit",
    "call_sync",
    "current",
    "measured_step",
    "measurements",
    "passed_on",
    "wait",
    "wait_all",
    "worker_name",
]
