"""What is kept and for how long. Pure: records and the time in, what may go out."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from rolecall.master.store.records import CheckpointRecord
from rolecall.settings import MasterSettings
from rolecall.spec.plan import CheckpointManifest

KEEP_KEYS = timedelta(days=1)
"""How long a repeated `Idempotency-Key` finds its job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the operator wants kept; None is for ever."""

    jobs: timedelta | None
    checkpoints: int
    """How many of the newest of a job stay."""
    finished_checkpoints: timedelta | None
    """How long the checkpoints of a job that succeeded stay."""
    audit: timedelta | None
    """How long the entries of the audit log stay."""

    @classmethod
    def of(cls, settings: MasterSettings) -> "Policy":
        """The policy of the environment."""
        return cls(
            jobs=_days(settings.keep_days),
            checkpoints=settings.keep_checkpoints,
            finished_checkpoints=_days(settings.keep_checkpoint_days),
            audit=_days(settings.keep_audit_days),
        )


def superfluous(
    records: Iterable[CheckpointRecord], keep: int, in_use: CheckpointManifest | None = None
) -> list[CheckpointManifest]:
    """Of a job's checkpoints, newest first, those that need not stay.

    The newest `keep` stay, and of those that the workload marks to be kept the newest. One that may be damaged stays
    until it is verified, beside these; so does the one that the running attempt resumed from.
    """
    trusted = [record.manifest for record in records if record.verify_at is None]
    marked = next((manifest for manifest in trusted if manifest.keep), None)
    return [manifest for manifest in trusted[keep:] if manifest not in (marked, in_use)]


def blobs_of(manifests: Iterable[CheckpointManifest]) -> set[str]:
    """The blobs that checkpoints consist of."""
    return {part.blob for manifest in manifests for part in manifest.parts}


def deletion_reason(manifests: Sequence[CheckpointManifest], why: str) -> str:
    """The event that tells of deleted checkpoints."""
    steps = [str(manifest.step) for manifest in manifests]
    named = (
        f"the checkpoint at step {steps[0]} is" if len(steps) == 1 else f"the checkpoints at steps {listed(steps)} are"
    )
    return f"{named} deleted: {why}"


def listed(names: Collection[str]) -> str:
    """Up to ten names, and how many more there are."""
    shown = list(names)[:10]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _days(days: float) -> timedelta | None:
    return timedelta(days=days) if days else None
