"""The useful share of a job's time, and the causes of the lost rest. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType

from rolecall.master.store.records import AttemptSummary
from rolecall.spec.report import TimeSpent
from rolecall.spec.state import JobState


class Loss(StrEnum):
    """The cause of a loss of a job's time."""

    QUEUE = "queue"
    STOPPED = "stopped"
    START = "start"
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"
    FINISH = "finish"
    REPEATED = "repeated"
    OTHER = "other"


MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        Loss.QUEUE: "The job waited for slots, for its turn, or for the end of its back-off.",
        Loss.STOPPED: "The job was paused, or had ended before it was retried by hand.",
        Loss.START: "From the placement of an attempt to its first optimizer step.",
        Loss.CHECKPOINT: "Training stood still for a checkpoint.",
        Loss.EVALUATION: "Training stood still for an evaluation.",
        Loss.FINISH: "Final evaluation, samples and export after the last step.",
        Loss.REPEATED: "Steps after the newest checkpoint of an attempt that ended, which the next attempt repeats.",
        Loss.OTHER: "Other work after the first step of the current attempt, such as that between epochs.",
    }
)
"""The explanation of each cause."""


@dataclass(frozen=True, slots=True)
class Past:
    """The time of the attempts before the current one, in seconds."""

    queue: float = 0.0
    stopped: float = 0.0
    """Paused, or ended before a retry. The attempts don't tell these apart."""
    start: float = 0.0
    run: float = 0.0
    """After the first steps."""
    ended_at: datetime | None = None

    def then(self, attempt: AttemptSummary, created_at: datetime, until: datetime) -> "Past":
        """This, and an attempt that ended, or has lasted, `until` then."""
        first_step = min(attempt.first_step_at or until, until)
        return Past(
            queue=self.queue + _seconds(attempt.queued_at, attempt.started_at),
            stopped=self.stopped + _seconds(self.ended_at or created_at, attempt.queued_at),
            start=self.start + _seconds(attempt.started_at, first_step),
            run=self.run + _seconds(first_step, until),
            ended_at=until,
        )


@dataclass(frozen=True, slots=True)
class Goodput:
    """The share of the time since the submission that retained optimizer steps took, and the lost seconds."""

    ratio: float
    lost: dict[Loss, float]


def past_of(attempts: Sequence[AttemptSummary], created_at: datetime) -> Past:
    """The sum of attempts that have ended, in order."""
    past = Past()
    for one in attempts:
        past = past.then(one, created_at, one.ended_at or one.started_at)
    return past


def goodput(past: Past, current: AttemptSummary, spent: TimeSpent, *, created_at: datetime, until: datetime) -> Goodput:
    """The goodput of a job whose `current` attempt runs at `until`, or ended then.

    The worker's clock measures `spent`; the other times are the master's, so that small differences count as nothing.
    """
    whole = past.then(current, created_at, until)
    start = whole.start - past.start
    rest = whole.run - past.run - (spent.total - spent.resumed)
    if current.first_step_at is not None:
        # The master learns of the first step at its end, but `spent` has the step, too: it is no loss.
        start = max(0.0, start + min(0.0, rest))
    lost = {
        Loss.QUEUE: whole.queue,
        Loss.STOPPED: whole.stopped,
        Loss.START: past.start + start,
        Loss.CHECKPOINT: spent.checkpoint,
        Loss.EVALUATION: spent.evaluation,
        Loss.FINISH: spent.finish,
        Loss.REPEATED: max(0.0, past.run - spent.resumed),
        Loss.OTHER: max(0.0, rest),
    }
    return Goodput(useful_share(spent, created_at=created_at, until=until), lost)


def useful_share(spent: TimeSpent, *, created_at: datetime, until: datetime) -> float:
    """The share of the time from the submission to `until` that retained optimizer steps took."""
    wall = _seconds(created_at, until)
    return min(1.0, spent.steps / wall) if wall else 0.0


def lost(
    attempts: Sequence[AttemptSummary], spent: TimeSpent, state: JobState, *, created_at: datetime, until: datetime
) -> dict[Loss, float]:
    """The losses of a job in `state` by cause `until` now, or its end. Empty before the first attempt.

    A job that is cancelled between two attempts has waited since the last one.
    """
    if not attempts:
        return {}
    *before, last = attempts
    end = last.ended_at or until
    found = goodput(past_of(before, created_at), last, spent, created_at=created_at, until=end).lost
    found[Loss.STOPPED if state is JobState.PAUSED else Loss.QUEUE] += _seconds(end, until)
    return found


def _seconds(begin: datetime, end: datetime) -> float:
    return max(0.0, (end - begin).total_seconds())
