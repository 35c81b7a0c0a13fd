"""A worker's answers to inspections, from a thread of its own: the main thread may wait for a peer that never comes.

The requests come from the node, in a file of the worker's folder. The answers go to a file that was opened before the
worker restricted itself.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from types import FrameType

from pydantic import ValidationError

from rolecall.logs import about
from rolecall.runtime.timeline import Timeline
from rolecall.spec.inspection import MAX_FRAMES, MAX_THREADS, Answer, Inspection, ThreadStack
from rolecall.spec.workdir import ANSWER_HEADER, Workdir

_POLL_S = 0.25
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class Inspector:
    """Answers the node's requests."""

    workdir: Workdir
    answer: int
    """The open file for answers."""
    timeline: Timeline
    start_profile: Callable[[int], str] | None = None
    """Starts a profile of this many steps, and returns the name of its artifact. None until the role begins."""

    def start(self) -> None:
        """Answer requests in a daemon thread from now on."""
        threading.Thread(target=self._run, name="inspection", daemon=True).start()

    def _run(self) -> None:
        newest = 0
        while True:
            time.sleep(_POLL_S)
            try:
                inspection = self._read()
                if inspection is not None and inspection.id != newest:
                    newest = inspection.id
                    self._write(inspection, self.answer_to(inspection))
            except Exception:  # noqa: BLE001 - a loop's tick: the next request must be answered
                _LOG.exception("an inspection failed", extra=about("inspection_failed"))

    def answer_to(self, inspection: Inspection) -> bytes:
        """The answer as JSON; an error if it would have more than `inspection.max_bytes` bytes."""
        try:
            body = self._answer(inspection)
        except Exception as error:  # noqa: BLE001 - the user must get the reason
            return _encode(Answer(error=f"{type(error).__name__}: {error}"))
        if len(body) > inspection.max_bytes:
            problem = (
                f"its answer has {len(body)} bytes; a worker of this gang can send {inspection.max_bytes} bytes at most"
            )
            return _encode(Answer(error=problem))
        return body

    def _answer(self, inspection: Inspection) -> bytes:
        match inspection.kind:
            case "timeline":
                return self._window(inspection.max_bytes)
            case "stacks":
                return _encode(Answer(stacks=tuple(stacks())))
            case "profile":
                if self.start_profile is None:
                    return _encode(Answer(error="it has not joined its gang yet; try again"))
                return _encode(Answer(artifact=self.start_profile(inspection.steps)))
            case unknown:
                return _encode(Answer(error=f"this release of Rolecall does not support the inspection {unknown}"))

    def _window(self, max_bytes: int) -> bytes:
        """The newest part of the timeline that fits, if one does."""
        wanted = max_bytes
        while len(body := _encode(Answer(window=self.timeline.window(wanted)))) > max_bytes and wanted:
            wanted //= 2
        return body

    def _read(self) -> Inspection | None:
        try:
            return Inspection.model_validate_json(self.workdir.inspection.read_text())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            _LOG.warning("an inspection can't be read: %s", error, extra=about("inspection_unreadable"))
            return None

    def _write(self, inspection: Inspection, body: bytes) -> None:
        """Write the header last, so that the node reads only complete answers."""
        os.ftruncate(self.answer, 0)
        os.pwrite(self.answer, body, ANSWER_HEADER)
        os.pwrite(self.answer, f"{inspection.id} {len(body)}".ljust(ANSWER_HEADER).encode(), 0)


def stacks() -> Iterator[ThreadStack]:
    """The calls of the threads of this process that run Python, the main thread first, without the caller's."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main, own = threading.main_thread().ident, threading.get_ident()
    found = sys._current_frames()  # pyright: ignore[reportPrivateUsage] - documented
    frames = sorted(found.items(), key=lambda one: one[0] != main)
    for ident, frame in islice(((ident, frame) for ident, frame in frames if ident != own), MAX_THREADS):
        calls = tuple(islice(_calls(frame), MAX_FRAMES))
        yield ThreadStack(thread=names.get(ident) or "without a name", frames=calls)


def _calls(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        yield f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}"
        frame = frame.f_back


def _encode(answer: Answer) -> bytes:
    return answer.model_dump_json(exclude_none=True).encode()
