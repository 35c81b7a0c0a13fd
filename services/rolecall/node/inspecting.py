"""The node's part in the inspection of a worker: passes the request on, and fetches the answer or a reason for none.

A worker can write anything as its answer. The node reads a bounded number of bytes, and only the master parses them.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from rolecall.node.client import MasterClient
from rolecall.node.folder import Folder
from rolecall.node.vitals import process_state, request_stacks
from rolecall.spec.inspection import ANSWER_S, Inspection
from rolecall.spec.workdir import ANSWER_HEADER, Workdir

_PINGS = 5
_CANT_ANSWER = {
    "T": "its process is stopped by a signal",
    "t": "its process is stopped by a debugger",
    "Z": "its process has ended",
    "X": "its process has ended",
    None: "its process has ended",
}
"""The states of a process (proc(5)) without an answer."""
_BUSY = f"no answer within {ANSWER_S:g} s: a call holds Python's lock, or the machine is overloaded"


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of an inspection: the answer, or the reason why there is none."""

    id: int
    kind: str
    body: bytes = b""
    silent: str = ""


class Inspected:
    """The inspections of one worker, one at a time: a new one replaces its predecessor."""

    def __init__(self, folder: Folder, workdir: Workdir, clock: Callable[[], float]) -> None:
        self.newest = 0
        """The id of the last inspection; 0 before the first."""
        self._folder = folder
        self._workdir = workdir
        self._clock = clock
        self._pending: Inspection | None = None
        self._until = 0.0

    def begin(self, inspection: Inspection) -> None:
        """Send the request to the worker. Raises `OSError` if it can't be written."""
        self.newest = inspection.id
        if self._folder.is_open:
            self._folder.write(self._workdir.inspection.name, inspection.model_dump_json())
            self._pending, self._until = inspection, self._clock() + ANSWER_S

    def finish(self, pid: int) -> Finished | None:
        """The result of the pending inspection of process `pid`, once; None while there is none."""
        if (pending := self._pending) is None:
            return None
        try:
            body, silent = self._read(pending), ""
        except OSError as error:
            body, silent = None, f"its answer can't be read: {error.strerror}"
        if body is None and not silent:
            silent = self._reason(pending, pid)
        if body is None and not silent:
            return None
        self._pending = None
        return Finished(pending.id, pending.kind, body or b"", silent)

    def _reason(self, pending: Inspection, pid: int) -> str:
        """The reason why process `pid` does not answer; empty while it has time."""
        state = process_state(pid)
        if state in _CANT_ANSWER:
            return _CANT_ANSWER[state]
        if self._clock() <= self._until:
            return ""
        has_stacks = pending.kind == "stacks" and request_stacks(pid, state)
        return f"{_BUSY}; the end of its log has the stacks of its threads" if has_stacks else _BUSY

    def _read(self, pending: Inspection) -> bytes | None:
        """The answer to the inspection; None while it is not complete."""
        header = self._folder.read(self._workdir.answer.name, 0, ANSWER_HEADER)
        with suppress(ValueError):
            number, size = map(int, header.split())
            if number == pending.id and 0 <= size <= pending.max_bytes:
                return self._folder.read(self._workdir.answer.name, ANSWER_HEADER, size)
        return None


async def measure_clock(
    client: MasterClient, node: str, clock: Callable[[], float] = time.monotonic
) -> dict[str, float]:
    """The offset of this machine's monotonic clock to the master's and its uncertainty, from the fastest of some calls.

    Empty for a master that doesn't tell its clock. Raises `MasterUnreachable`.
    """
    readings: list[tuple[float, float]] = []
    for _ in range(_PINGS):
        begin = clock()
        master_s = (await client.cluster(node)).monotonic_s
        end = clock()
        if master_s is None:
            return {}
        readings.append(((end - begin) / 2, master_s - (begin + end) / 2))
    uncertainty, offset = min(readings)
    return {"offset_s": offset, "uncertainty_s": uncertainty}
