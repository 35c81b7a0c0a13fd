"""Refused calls for the audit log. A flood of them becomes a few entries with large counts. Pure."""

from dataclasses import asdict, dataclass, replace
from datetime import datetime

from rolecall.master.clock import Clock
from rolecall.spec.access import AuditEntry

WINDOW_S = 60.0
MAX_PER_WINDOW = 30
"""Entries per window: 30 a minute are 43,200 a day, a few megabytes."""
_MAX_KINDS = 30
"""The number of kinds of one token beyond which targets are no longer distinguished."""
_MAX_WAITING = 1000
_OTHERS = "others"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The kind of a refused call; calls of the same kind share an entry."""

    token: str | None
    address: str
    action: str
    target: str
    outcome: int


class Refusals:
    """Counts refused calls by kind. `take` returns at most `MAX_PER_WINDOW` entries per window."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[Refusal, tuple[datetime, int]] = {}
        self._window_began = clock.monotonic()
        self._taken = 0

    def note(self, refusal: Refusal) -> None:
        """Count a call. Beyond a number of kinds, calls of the same token share entries."""
        self._add(self._bounded(refusal), self._clock.now(), 1)

    def restore(self, entries: list[AuditEntry]) -> None:
        """Take back entries that could not be written."""
        for one in entries:
            self._add(Refusal(one.token, one.address, one.action, one.target, one.outcome), one.at, one.count)

    def _bounded(self, refusal: Refusal) -> Refusal:
        if refusal in self._waiting:
            return refusal
        full = sum(one.token == refusal.token for one in self._waiting) >= _MAX_KINDS
        if full and refusal.token is not None:
            refusal = replace(refusal, target=_OTHERS)
        if (full and refusal.token is None) or len(self._waiting) >= _MAX_WAITING:
            # Unauthenticated clients can have any number of addresses.
            refusal = Refusal(None, _OTHERS, _OTHERS, _OTHERS, refusal.outcome)
        return refusal

    def _add(self, refusal: Refusal, at: datetime, count: int) -> None:
        first, before = self._waiting.get(refusal, (at, 0))
        self._waiting[refusal] = (first, before + count)

    def take(self) -> list[AuditEntry]:
        """The entries to write now. The others are counted further until the next window."""
        now = self._clock.monotonic()
        if now - self._window_began >= WINDOW_S:
            self._window_began, self._taken = now, 0
        chosen = list(self._waiting.items())[: MAX_PER_WINDOW - self._taken]
        self._taken += len(chosen)
        for refusal, _ in chosen:
            del self._waiting[refusal]
        return [AuditEntry(id=0, at=at, count=count, **asdict(refusal)) for refusal, (at, count) in chosen]
