"""Profiles of running workers: `torch.profiler` for some steps, whose trace becomes an artifact of the job."""

import gzip
import logging
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from rolecall.logs import about
from rolecall.runtime.artifacts import Artifacts
from rolecall.runtime.timeline import Timeline
from rolecall.spec.errors import Conflict, RolecallError

MAX_TRACE_BYTES = 256 << 20
"""The maximum size of a compressed trace."""
_LOG = logging.getLogger(__name__)
_KINETO_SILENT = "6"
"""Above the levels of Kineto's messages, of which errors have the highest."""


class Profiler:
    """Profiles the steps of `timeline`, in the thread that runs them. One profile at a time.

    The trace is written and stored in a thread of its own, so that the training doesn't wait for it.
    """

    def __init__(
        self,
        worker: str,
        device: torch.device,
        timeline: Timeline,
        artifacts: Artifacts,
        *,
        scratch: Path,
        on_event: Callable[[str], None],
    ) -> None:
        self._artifact = f"profile-{worker}.json.gz"
        self._worker = worker
        self._device = device
        self._timeline = timeline
        self._artifacts = artifacts
        self._scratch = scratch
        self._on_event = on_event
        self._lock = threading.Lock()
        self._wanted = 0
        self._first: int | None = None
        self._running: profile | None = None
        self._storing: threading.Thread | None = None

    def start(self, steps: int) -> str:
        """Profile the next `steps` steps. Returns the name of the artifact. Callable in any thread.

        Raises `Conflict` while another profile runs or is stored, and for a worker that runs no steps.
        """
        with self._lock:
            if self._wanted or (self._storing is not None and self._storing.is_alive()):
                raise Conflict("it is already recording or storing a profile; try again later")
            if not self._timeline.step_count and not self._timeline.is_in_step:
                raise Conflict(
                    "it runs no steps, or has not run the first one: profile trainers or stages after their first step"
                )
            self._wanted = steps
            self._timeline.on_step = self._on_step
        return self._artifact

    def close(self) -> None:
        """Store a profile that is not complete when the role ends, and wait until it is stored."""
        if self._running is not None:
            self._finish(None)
        if self._storing is not None:
            self._storing.join()

    def _on_step(self, number: int) -> None:
        """Called at the start of each step, while a profile is wanted."""
        if self._running is None:
            self._first = number
            # There is a single cycle. Otherwise, torch 2.11 warns that it keeps only the last one.
            self._running = profile(activities=_activities(self._device), acc_events=True)
            self._running.start()
        elif self._first is not None and number - self._first >= self._wanted:
            self._finish(number - 1)

    def _finish(self, last: int | None) -> None:
        running, self._running = self._running, None
        self._timeline.on_step = None
        assert running is not None
        running.stop()
        steps = f"steps {self._first} to {last}" if last is not None else f"the steps from {self._first} on"
        self._storing = threading.Thread(target=self._store, args=(running, steps), name="profile", daemon=True)
        self._storing.start()
        self._wanted = 0

    def _store(self, running: profile, steps: str) -> None:
        plain, packed = self._scratch / "profile.json", self._scratch / self._artifact
        try:
            running.export_chrome_trace(str(plain))
            with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=3) as target:
                shutil.copyfileobj(source, target)
            if (size := packed.stat().st_size) > MAX_TRACE_BYTES:
                raise Conflict(f"it has {size} bytes, more than {MAX_TRACE_BYTES}; record fewer steps")
            self._artifacts.put(self._artifact, packed)
            self._on_event(f"the profile of {self._worker}, {steps}, is stored as artifact {self._artifact}")
        except (OSError, RuntimeError, RolecallError) as error:
            _LOG.exception("the profile can't be stored", extra=about("profile_failed"))
            self._on_event(f"the profile of {self._worker}, {steps}, can't be stored: {error}")
        finally:
            plain.unlink(missing_ok=True)
            packed.unlink(missing_ok=True)


def _activities(device: torch.device) -> list[ProfilerActivity]:
    if device.type == "cuda":
        return [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    # Kineto, which records the trace, looks for GPUs even then, and would report in the job's log that there are none.
    os.environ.setdefault("KINETO_LOG_LEVEL", _KINETO_SILENT)
    return [ProfilerActivity.CPU]
