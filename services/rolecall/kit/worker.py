"""The context of a role's `run(context)`, and helpers for the workers of a gang: RPC, and common decisions.

`Agreement.after` returns the same `Decision` on all ranks of the process group after a step. `TrainingLoop` uses it;
other loops with a process group call it to save and stop after the same step on all ranks.

`context.timeline` records the phases of steps; `span` does so in functions that don't have the context. `call` is
`rpc.rpc_async`, but counted in the worker's metrics, and between workers of one machine with large tensors in shared
memory. A function that is called can return `shared(result, caller)` for the same. Count other things with
`measurements`.
`about` names the event of a log record: `log.info("…", extra=about("file_skipped"))`.
"""

from rolecall.logs import about
from rolecall.runtime.agreement import Agreement, Decision
from rolecall.runtime.context import WorkerContext, current, span, worker_name
from rolecall.runtime.measuring import measurements
from rolecall.runtime.remote import Mailbox, StepBarrier, call, call_limit, passed_on
from rolecall.runtime.shared_memory import shared
from rolecall.runtime.timeline import Timeline
from rolecall.spec.timeline import Category

__all__ = [
    "Agreement",
    "Category",
    "Decision",
    "Mailbox",
    "StepBarrier",
    "Timeline",
    "WorkerContext",
    "about",
    "call",
    "call_limit",
    "current",
    "measurements",
    "passed_on",
    "shared",
    "span",
    "worker_name",
]
