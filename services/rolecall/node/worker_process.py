"""One worker on this node: its state, and the actions on it."""

import json
import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from rolecall.daemon_thread import call_aside
from rolecall.logs import about
from rolecall.node.devices import oom_kills
from rolecall.node.folder import Folder
from rolecall.node.fork_client import kill_group
from rolecall.node.inspecting import Inspected
from rolecall.node.logs import ProgressReader, Stream
from rolecall.node.reconcile import Actual, Key
from rolecall.node.vitals import Vitals, classify_exit, process_state, request_stacks
from rolecall.spec.metric import WORKER_METRICS, WorkerMetric
from rolecall.spec.plan import WorkerLaunch
from rolecall.spec.redaction import redact_text
from rolecall.spec.report import Failure, ProgressLine, WorkerReport
from rolecall.spec.shared_memory import remove_files
from rolecall.spec.state import StopMode, WorkerState
from rolecall.spec.timeline import WINDOW_BYTES
from rolecall.spec.workdir import PROGRESS_BYTES, Workdir

_LOG = logging.getLogger(__name__)
_FAILURE_BYTES = 256 * 1024
"""More than the JSON of any `Failure`."""
_MEASUREMENT_BYTES = 64 * 1024
"""More than the JSON of all measurements."""
_STACKS_S = 0.5
"""The time for which a hung worker can write the stacks of its threads."""
_MAX_TEXT = 500
_TEXTS_DROPPED = "the worker failed, and the master refused its message (see its log)"


class WorkerProcess:
    """One worker; `changed` is called when there is news for the master."""

    def __init__(
        self,
        launch: WorkerLaunch,
        data: Path,
        timeout_s: float,
        log_bytes: int,
        changed: Callable[[], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.launch = launch
        self.key = Key.of(launch)
        self.workdir = Workdir.of(data, *self.key)
        self._folder = Folder(self.workdir.path)
        self.log = Stream(self.key, "log", self._folder, self.workdir.log.name, keep_bytes=log_bytes, clock=clock)
        name = self.workdir.progress.name
        self.progress = Stream(self.key, "progress", self._folder, name, max_bytes=PROGRESS_BYTES, clock=clock)
        file = self.workdir.timeline.name
        self.timeline = Stream(self.key, "timeline", self._folder, file, max_bytes=WINDOW_BYTES, clock=clock)
        self.inspected = Inspected(self._folder, self.workdir, clock)
        self.newest: dict[str, float] = {}
        """The newest step, loss and samples per second."""
        self._changed = changed
        self._clock = clock
        self._now = now
        self.report = WorkerReport(**self.key._asdict(), state=WorkerState.STARTING)
        self._reader = ProgressReader(self.key, self._folder, name)
        self._vitals = Vitals(timeout_s)
        self._measured: dict[str, dict[str, float]] = {}
        self._asked_at: float | None = None
        self._killed: str | None = None
        self._hung_at: float | None = None
        self._writes_stacks = False
        self._has_port = launch.worker.rank == 0
        self._oom_kills = oom_kills()
        self.pid: int | None = None
        """The process id while the process runs."""
        self._ships = False
        self._forgotten = False

    @property
    def actual(self) -> Actual:
        """The state for reconciliation."""
        return Actual(
            ended=self.report.state.ended,
            killed=self._killed is not None,
            joined=self.report.joined_at is not None,
            asked_s=None if self._asked_at is None else self._clock() - self._asked_at,
            has_port=self._has_port,
            inspection=self.inspected.newest,
        )

    def make_folder(self) -> None:
        """Create the work folder, empty and private."""
        self._folder.make()
        self._ships = True
        if self.launch.rendezvous_port is not None and not self._has_port:
            self.send_port(self.launch.rendezvous_port)

    def forked(self, pid: int) -> None:
        """Record that the process runs."""
        self.pid = pid
        _LOG.info("worker %s started (process %d)", self.key, pid, extra=self._about("worker_started"))
        self._update_report(pid=pid, spawned_at=self._now())
        if self._killed is not None:
            kill_group(pid)

    def send_port(self, port: int) -> None:
        """Send the gang's port to the worker."""
        self._folder.write(self.workdir.rendezvous.name, str(port))
        self._has_port = True

    def ask(self, mode: StopMode) -> None:
        """Ask the worker to stop between two steps."""
        _LOG.info("worker %s is asked to stop: %s", self.key, mode, extra=self._about("worker_stop_requested"))
        self._asked_at = self._clock()
        if self._folder.is_open:
            self._folder.write(self.workdir.stop.name, mode)

    def kill(self, reason: str = "") -> None:
        """Kill the process group. Without a `reason`, the gang stops, which is not a failure."""
        why = f": {reason}" if reason else ""
        _LOG.info("worker %s is killed%s", self.key, why, extra=self._about("worker_killed"))
        self._killed = reason
        if self.pid is not None:
            kill_group(self.pid)

    def measurements(self) -> dict[str, dict[str, float]]:
        """The worker's own measurements, by metric and label: finite values of the metrics that `spec.metric` has."""
        try:
            found = json.loads(self._folder.read(self.workdir.measurements.name, 0, _MEASUREMENT_BYTES) or b"{}")
            self._measured = {one.name: _legal(one, found.get(one.name)) for one in WORKER_METRICS}
        except (OSError, ValueError, RecursionError, AttributeError) as error:
            # The worker may be writing. A worker that writes nonsense has only itself to blame.
            extra = self._about("measurements_unreadable")
            _LOG.debug("the measurements of worker %s can't be read: %s", self.key, error, extra=extra)
        return self._measured

    def observe(self) -> None:
        """Read the new progress lines, and kill the process if it hangs."""
        for line in self._reader.read():
            self._apply(line)
        if self.pid is None or self._killed is not None:
            return
        state, beat = process_state(self.pid), self._folder.changed_ns(self.workdir.beat.name)
        hung = self._vitals.observe(state, beat, self._clock())
        if not hung:
            self._hung_at = None
            return
        if self._hung_at is None:
            self._hung_at = self._clock()
            self._writes_stacks = request_stacks(self.pid, state)
        if not self._writes_stacks:
            self.kill(hung)
        elif self._clock() > self._hung_at + _STACKS_S:
            self.kill(f"{hung}; the end of its log has the stacks of its threads")

    def ended(self, status: int) -> tuple[WorkerState, Failure | None]:
        """The final state for the exit status, with the failure that the worker wrote."""
        self.pid = None
        now, before = oom_kills(), self._oom_kills
        oom = None if now is None or before is None else now > before
        return classify_exit(status, self._read_failure(), killed=self._killed, oom=oom, now=self._now())

    def lost(self, reason: str) -> tuple[WorkerState, Failure | None]:
        """The final state of a worker without a process, or with one whose end is not reported, which is killed."""
        if self.pid is not None:
            kill_group(self.pid)
        self.pid = None
        if self._killed == "":
            return WorkerState.STOPPED, None
        return WorkerState.FAILED, Failure(message=reason, at=self._now())

    def finish(self, state: WorkerState, failure: Failure | None = None, exit_code: int | None = None) -> None:
        """Report the end. Send the worker's progress to the master before this call."""
        why = f": {failure.message}" if failure else ""
        _LOG.info("worker %s %s%s", self.key, state, why, extra=self._about("worker_ended"))
        call_aside(remove_files, self.launch)  # A job can have filled the folder.
        self._update_report(state=state, failure=failure, exit_code=exit_code, log_bytes=self.log.size)

    def drop_texts(self, why: str) -> bool:
        """Remove the texts of the worker's failure, which the master refuses; return whether there were any."""
        failure = self.report.failure
        message = redact_text(f"{_TEXTS_DROPPED}: {why}")[:_MAX_TEXT]
        if failure is None or failure.message.startswith(_TEXTS_DROPPED):
            return False
        self._update_report(failure=failure.model_copy(update={"message": message, "traceback": ""}))
        return True

    def shipped(self) -> None:
        """Record that the master has the complete output, and delete the folder of a forgotten worker."""
        self._ships = False
        if self._forgotten:
            self._folder.delete()

    def forget(self) -> None:
        """Delete the worker's folder as soon as its log is shipped."""
        self._forgotten = True
        if not self._ships:
            self._folder.delete()

    def _apply(self, line: ProgressLine) -> None:
        """Report what a line of the worker's progress file says: its step, its port, and that it has joined."""
        values = {"step": line.step, "loss": line.metrics.get("loss"), "samples_per_second": line.samples_per_s}
        self.newest |= {name: float(value) for name, value in values.items() if value is not None}
        # Only the first ones: each report is a heartbeat, and a job's code can write any number of lines.
        if line.kind == "rendezvous" and self.report.rendezvous_port is None:
            self._update_report(rendezvous_port=line.port)
        elif line.kind == "joined" and self.report.joined_at is None:
            self._update_report(state=WorkerState.RUNNING, joined_at=line.at)

    def _read_failure(self) -> Failure | None:
        try:
            written = self._folder.read(self.workdir.failure.name, 0, _FAILURE_BYTES)
            return Failure.model_validate_json(written) if written else None
        except (OSError, ValidationError) as error:
            extra = self._about("failure_unreadable")
            why = redact_text(str(error))[:_MAX_TEXT]
            _LOG.warning("the failure of worker %s can't be read: %s", self.key, why, extra=extra)
            return None

    def _about(self, event: str) -> dict[str, object]:
        return about(event, **self.key._asdict())

    def _update_report(self, **fields: object) -> None:
        self.report = self.report.model_copy(update=fields)
        self._changed()


def _legal(metric: WorkerMetric, found: Any) -> dict[str, float]:
    """The finite numbers among `found`, by valid values of the metric's label."""
    if not isinstance(found, dict):
        return {}
    by_label = cast(dict[str, Any], found)
    return {label: number for label in metric.values if (number := _number(by_label.get(label))) is not None}


def _number(found: Any) -> float | None:
    """A finite number, or None for anything else, such as an integer that no float can hold."""
    with suppress(TypeError, OverflowError):
        return float(found) if math.isfinite(found) else None
    return None
