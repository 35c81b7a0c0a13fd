"""Decisions about what to delete. Pure: records and the time in, what to delete out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from rolecall.master.store.records import CheckpointRecord
from rolecall.settings.master import MasterSettings
from rolecall.spec.plan import CheckpointManifest
from rolecall.spec.visible import listed

KEEP_KEYS = timedelta(days=1)
"""The time for which a repeated `Idempotency-Key` finds its job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """The operator's retention settings. None means indefinitely."""

    jobs: timedelta | None
    checkpoints: int
    """The number of newest checkpoints that a job keeps."""
    finished_checkpoints: timedelta | None
    """The time for which the checkpoints of a succeeded job are kept."""
    audit: timedelta | None
    """The time for which entries of the audit log are kept."""

    @classmethod
    def of(cls, settings: MasterSettings) -> "RetentionPolicy":
        return cls(
            jobs=_days(settings.keep_days),
            checkpoints=settings.keep_checkpoints,
            finished_checkpoints=_days(settings.keep_checkpoint_days),
            audit=_days(settings.keep_audit_days),
        )


def superfluous(
    records: Iterable[CheckpointRecord], keep: int, in_use: CheckpointManifest | None = None
) -> list[CheckpointManifest]:
    """The checkpoints to delete, of a job's checkpoints, newest first.

    Kept are the newest `keep`, the newest one that the workload marks as kept, those that wait for verification, and
    the one from which the running attempt resumed.
    """
    trusted = [record.manifest for record in records if record.verify_at is None]
    marked = next((manifest for manifest in trusted if manifest.keep), None)
    return [manifest for manifest in trusted[keep:] if manifest not in (marked, in_use)]


def blobs_of(manifests: Iterable[CheckpointManifest]) -> set[str]:
    return {part.blob for manifest in manifests for part in manifest.parts}


def deletion_reason(manifests: Sequence[CheckpointManifest], why: str) -> str:
    steps = [str(manifest.step) for manifest in manifests]
    named = (
        f"the checkpoint at step {steps[0]} is" if len(steps) == 1 else f"the checkpoints at steps {listed(steps)} are"
    )
    return f"{named} deleted: {why}"


def _days(days: float) -> timedelta | None:
    return timedelta(days=days) if days else None
