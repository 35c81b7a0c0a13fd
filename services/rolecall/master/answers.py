"""What each node was last answered, so that a heartbeat that brings no news, and gets none, needs no database.

An answer is good until the node is notified, which whoever changes what it should run does after the commit. It is read
again after `_TRUSTED_S` in any case: a notification that was lost (a caller cut off right after its commit) heals then.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from rolecall.master.signals import Signals
from rolecall.spec.report import WorkerReport
from rolecall.spec.wire import Desired, Heartbeat

_TRUSTED_S = 10.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a node should be running, as it is sent."""

    version: int
    body: bytes

    @classmethod
    def of(cls, desired: Desired) -> "Answer":
        """The answer that says so."""
        return cls(desired.version, desired.model_dump_json().encode())


@dataclass(frozen=True, slots=True)
class _Recorded:
    incarnation: str
    draining: bool
    workers: tuple[WorkerReport, ...]
    until: float


@dataclass(frozen=True, slots=True)
class _Kept:
    incarnation: str
    answer: Answer
    until: float


class Answers:
    """The signals of the nodes, and what was last heard of each and answered to it."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._signals = Signals()
        self._recorded: dict[str, _Recorded] = {}
        self._kept: dict[str, _Kept] = {}

    @property
    def closed(self) -> bool:
        """Whether nobody is to wait any more."""
        return self._signals.closed

    def ticket(self, node: str) -> asyncio.Event:
        """An event that is set when what `node` should run may be different."""
        return self._signals.ticket(node)

    def notify(self, *nodes: str) -> None:
        """What these nodes should run may be different."""
        for node in nodes:
            self._recorded.pop(node, None)
            self._kept.pop(node, None)
        self._signals.notify(*nodes)

    def close(self) -> None:
        """Release all who wait: the program ends."""
        self._signals.close()

    def is_recorded(self, node: str, beat: Heartbeat) -> bool:
        """Whether all that `beat` tells was stored, and nothing has changed for the node since."""
        recorded = self._recorded.get(node)
        if recorded is None or recorded.until <= self._now():
            return False
        reported = (beat.started, beat.draining, beat.workers)
        return (recorded.incarnation, recorded.draining, recorded.workers) == reported

    def record(self, node: str, beat: Heartbeat, ticket: asyncio.Event) -> None:
        """All that `beat` tells is stored; it was looked at after `ticket` was taken."""
        if not ticket.is_set():
            self._recorded[node] = _Recorded(beat.started, beat.draining, beat.workers, self._now() + _TRUSTED_S)

    def find(self, node: str, incarnation: str) -> Answer | None:
        """The answer for this incarnation of the node, if it is known to be still right."""
        kept = self._kept.get(node)
        return kept.answer if kept and kept.incarnation == incarnation and kept.until > self._now() else None

    def keep(self, node: str, incarnation: str, answer: Answer, ticket: asyncio.Event) -> None:
        """Remember an answer that was read after `ticket` was taken."""
        if not ticket.is_set():
            self._kept[node] = _Kept(incarnation, answer, self._now() + _TRUSTED_S)
