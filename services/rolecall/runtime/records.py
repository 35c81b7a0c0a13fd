"""What a worker tells of the files it has stored. Torch-free."""

from typing import Protocol

from rolecall.spec.plan import CheckpointManifest
from rolecall.spec.wire import ArtifactNotice


class Records(Protocol):
    """Takes note of a job's files: in the service, the master."""

    def record_checkpoint(self, manifest: CheckpointManifest) -> None:
        """Close a checkpoint, whose parts are stored; the next attempt starts there."""
        ...

    def record_artifact(self, notice: ArtifactNotice) -> None:
        """Make a stored file one of the job's artifacts."""
        ...
