"""A cache of the last answer to each node, so that a heartbeat without changes on either side needs no database.

An answer is valid until the node is notified. Code that changes a node's desired workers notifies it after the commit.
After `_TRUSTED_S` the answer is read again in any case, so that a lost notification corrects itself.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from rolecall.master.signals import Signals
from rolecall.spec.report import WorkerReport
from rolecall.spec.wire import Desired, Heartbeat

_TRUSTED_S = 10.0


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """A node's desired workers, serialized."""

    version: int
    body: bytes

    @classmethod
    def of(cls, desired: Desired) -> "HeartbeatAnswer":
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
    answer: HeartbeatAnswer
    until: float


class Answers(Signals):
    """A signal for each node that its desired workers may have changed, and its last heartbeat and answer."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__()
        self._now = now
        self._recorded: dict[str, _Recorded] = {}
        self._kept: dict[str, _Kept] = {}

    def notify(self, *keys: str) -> None:
        """Signal that the desired workers of these nodes may have changed."""
        for node in keys:
            self._recorded.pop(node, None)
            self._kept.pop(node, None)
        super().notify(*keys)

    def is_recorded(self, node: str, beat: Heartbeat) -> bool:
        """Return whether the content of `beat` is stored, and nothing has changed for the node since."""
        recorded = self._recorded.get(node)
        if recorded is None or recorded.until <= self._now():
            return False
        reported = (beat.started, beat.draining, beat.workers)
        return (recorded.incarnation, recorded.draining, recorded.workers) == reported

    def record(self, node: str, beat: Heartbeat, ticket: asyncio.Event) -> None:
        """Record that the content of `beat` is stored. It was read after `ticket` was taken."""
        if not ticket.is_set():
            self._recorded[node] = _Recorded(beat.started, beat.draining, beat.workers, self._now() + _TRUSTED_S)

    def find(self, node: str, incarnation: str) -> HeartbeatAnswer | None:
        """The cached answer for this incarnation of the node, if it is still valid."""
        kept = self._kept.get(node)
        return kept.answer if kept and kept.incarnation == incarnation and kept.until > self._now() else None

    def keep(self, node: str, incarnation: str, answer: HeartbeatAnswer, ticket: asyncio.Event) -> None:
        """Cache an answer that was read after `ticket` was taken."""
        if not ticket.is_set():
            self._kept[node] = _Kept(incarnation, answer, self._now() + _TRUSTED_S)
