"""The main function of a worker: checks the plan, joins the gang and runs the role.

It runs in a process of the fork server. Exit codes: 0 if the role has ended, 75 after a stop request, 1 after a
failure, which is in `failure.json`.
"""

import importlib
import logging
import traceback
import warnings
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import torch
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rolecall import __version__
from rolecall.logs import about, log_to_stderr, stamp_records
from rolecall.runtime.artifacts import Artifacts
from rolecall.runtime.attempt_client import AttemptClient
from rolecall.runtime.blobs import JobBlobs, SharedBlobs
from rolecall.runtime.checkpoint import Checkpoints
from rolecall.runtime.context import WorkerContext, enter, own_device, worker_name
from rolecall.runtime.measuring import start_publishing
from rolecall.runtime.profiler import Profiler
from rolecall.runtime.rendezvous import join_before_role
from rolecall.runtime.reporter import Reporter
from rolecall.runtime.timeline import Timeline
from rolecall.settings.environment import read_log_format
from rolecall.settings.worker import read_worker
from rolecall.spec.errors import DamagedCheckpoint, PeerLost, RolecallError, Stopped, WorkloadError
from rolecall.spec.fork import ForkRequest
from rolecall.spec.report import Failure
from rolecall.spec.state import STOPPED_STATUS
from rolecall.spec.timeline import WINDOW_BYTES
from rolecall.spec.workdir import Workdir
from rolecall.spec.workload import Params, Workload
from rolecall.worker.inspection import Inspector
from rolecall.worker.outputs import Outputs, start_beating
from rolecall.worker.sandbox import Sandbox, confine
from rolecall.workloads import catalogue

_LOG = logging.getLogger(__name__)
DONE, FAILED = 0, 1

_TRACEBACK_LINES = 30
_MAX_PROBLEMS = 3
# Parts of the messages of RPC, Gloo and the store after the loss of the other end of a connection.
_PEER_LOST = (
    "eof",
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "pipe closed",
    "pipe is closed",
    "connection was likely closed",
    "failed to recv",
    "rpc agent is not running",
)


def play(request: ForkRequest) -> int:
    """Run one worker to its end and return the process's exit code."""
    workdir = Workdir(request.workdir)
    log_to_stderr(form=read_log_format())
    launch = request.launch
    stamp_records(job=launch.job, attempt=launch.attempt, rank=launch.worker.rank)
    # torch warns about every Gloo group in its own object collectives, and callers can't prevent it.
    warnings.filterwarnings("ignore", message="You are using a Backend", category=UserWarning)
    outputs, sandbox = Outputs.open(workdir), Sandbox()
    try:
        # First, while the process has one thread and no code of a job has run.
        sandbox = confine(request, read_worker())
        start_beating(outputs.beat)
        inspector = Inspector(workdir, outputs.answer, Timeline())
        inspector.start()
        start_publishing(outputs.measurements, inspector.timeline)
        try:
            _play(request, workdir, outputs.report, inspector)
        finally:
            _leave_timeline(outputs, inspector.timeline)
    except Stopped as reason:
        _LOG.info("stopped: %s", reason, extra=about("worker_stopped"))
        return STOPPED_STATUS
    except BaseException as error:  # noqa: BLE001 - the master must get every failure
        _LOG.exception("the worker failed", extra=about("worker_failed"))
        outputs.fail(_failure(error, sandbox))
        return FAILED
    return DONE


def _play(request: ForkRequest, workdir: Workdir, report: Reporter, inspector: Inspector) -> None:
    """Load the workload, check the node, join the gang, and run the function of the worker's role."""
    launch = request.launch
    # Before the second thread starts: torch rebuilds its pool on first use after a fork, which is not thread-safe.
    torch.set_num_threads(launch.worker.threads)
    workload = catalogue.load(launch.workload)
    params = _legal_params(workload, launch.params)
    context = _context(request, workdir, params, report, inspector.timeline)
    enter(context)
    if workload.check_node is not None:
        workload.check_node(params, launch.worker.role)
    role = importlib.import_module(workload.module_of(launch.worker.role))
    joined = join_before_role(launch, workload, workdir, context.report)
    profiler = Profiler(
        worker_name(context.role, context.role_rank),
        context.device,
        context.timeline,
        context.artifacts,
        scratch=workdir.scratch,
        on_event=context.report.event,
    )
    with closing(context.report), joined, closing(profiler):
        inspector.start_profile = profiler.start
        role.run(context)


def _leave_timeline(outputs: Outputs, timeline: Timeline) -> None:
    """Write the last window of the timeline. What a workload records wrongly must not change the result of its job."""
    try:
        outputs.leave(timeline.window(WINDOW_BYTES))
    except ValidationError as error:
        _LOG.warning("the worker leaves no timeline: %s", error, extra=about("timeline_invalid"))


def _legal_params(workload: Workload[Any], given: dict[str, Any]) -> Params:
    """The parameters, which a master has checked. Invalid ones come from another version of the workload: the job was
    stored by another release, or the node's plug-in differs from the master's."""
    try:
        return workload.params.model_validate(given)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False, include_context=False)
        more = f" (and {len(problems) - _MAX_PROBLEMS} more)" if len(problems) > _MAX_PROBLEMS else ""
        # One line, because the job's reason is the first one.
        listed = "; ".join(_in_one_line(problem) for problem in problems[:_MAX_PROBLEMS])
        raise WorkloadError(
            f"{workload.name} of Rolecall {__version__} refuses parameters that another version accepted: "
            f"{listed}{more}. Submit the job again without them, or run it with that version"
        ) from error


def _in_one_line(problem: ErrorDetails) -> str:
    """A pydantic error: the path of the field, and the message."""
    path = ".".join(map(str, ("params", *problem["loc"])))
    return f"{path}: {' '.join(problem['msg'].removeprefix('Value error, ').split())}"


def _context(
    request: ForkRequest, workdir: Workdir, params: Params, report: Reporter, timeline: Timeline
) -> WorkerContext[Any]:
    launch = request.launch
    client = AttemptClient(request.master_url, request.token, launch.job, launch.attempt, request.trust)
    blobs: JobBlobs = SharedBlobs(launch.blob_url, launch.job, launch.attempt) if launch.blob_url else client
    return WorkerContext(
        launch=launch,
        params=params,
        device=own_device(launch.worker),
        workdir=workdir,
        cache=request.cache,
        report=report,
        checkpoints=Checkpoints(
            blobs, client, launch.attempt, launch.resume_from, workdir.scratch, on_skip=report.event
        ),
        artifacts=Artifacts(blobs, client, launch.attempt, on_wait=report.event),
        timeline=timeline,
    )


def _failure(error: BaseException, sandbox: Sandbox) -> Failure:
    formatted = traceback.TracebackException.from_exception(error)
    lines = "".join(formatted.format()).splitlines()
    # Unlike `str(error)`, this has a substitute for the text if `__str__` fails, which can be a job's code.
    text = str(formatted).strip()
    headline = f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
    lost_peer = isinstance(error, RuntimeError) and any(sign in text.lower() for sign in _PEER_LOST)
    return Failure(
        message=headline + sandbox.hint(error),
        # The message describes the user's mistake; the log has the traceback.
        traceback="" if isinstance(error, WorkloadError) else "\n".join(lines[-_TRACEBACK_LINES:]),
        retryable=error.retryable if isinstance(error, RolecallError) else True,
        consequence=lost_peer or isinstance(error, PeerLost),
        condemns_checkpoint=isinstance(error, DamagedCheckpoint),
        at=datetime.now(UTC),
    )
