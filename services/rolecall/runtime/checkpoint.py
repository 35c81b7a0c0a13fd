# pyright: standard
"""Checkpoints: every role writes its part, and a manifest of the parts makes them valid.

A part is one safetensors file (never pickle). `save_part` may run in all workers in parallel; one of them gathers the
parts and calls `commit`. The master refuses manifests of stale attempts. While the blob store is unavailable,
checkpoints are skipped and training continues.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from rolecall.durable_files import sync
from rolecall.logs import about
from rolecall.runtime.blobs import JobBlobs, Records, sha256_of
from rolecall.runtime.measuring import measurements
from rolecall.spec import metric
from rolecall.spec.errors import BlobsUnavailable, CheckpointError, DamagedCheckpoint, NoSuchBlob
from rolecall.spec.plan import CheckpointManifest, CheckpointPart

Tensors = Mapping[str, torch.Tensor]
_LOG = logging.getLogger(__name__)


class MissingPart(CheckpointPart):
    """A part that could not be stored. A checkpoint with such a part is skipped."""

    reason: str


class Checkpoints:
    """Writes and reads checkpoints of one worker."""

    def __init__(
        self,
        blobs: JobBlobs,
        records: Records,
        attempt: int,
        resume_from: CheckpointManifest | None,
        scratch: Path,
        *,
        on_skip: Callable[[str], None] | None = None,
    ) -> None:
        self.resume_from = resume_from
        self._blobs = blobs
        self._records = records
        self._attempt = attempt
        self._scratch = scratch
        self._on_skip = on_skip or partial(_LOG.warning, extra=about("checkpoint_skipped"))

    def save_part(self, step: int, name: str, tensors: Tensors) -> CheckpointPart:
        """Write and store this worker's part of the checkpoint after `step`; `name` is unique in the gang.

        Returns a `MissingPart` if the blob store is unavailable.
        """
        began = time.perf_counter()
        file_name = f"step-{step:012d}-{name}.safetensors"
        path = self._scratch / file_name
        save_file(separate_memory(tensors), path)
        sync(path)
        part = CheckpointPart(
            name=name, blob=f"{self._attempt}/{file_name}", size=path.stat().st_size, sha256=sha256_of(path)
        )
        try:
            self._blobs.put(file_name, path, part.sha256)
        except BlobsUnavailable as error:
            return MissingPart(**part.model_dump(), reason=str(error))
        finally:
            path.unlink()
        measurements.add(metric.CHECKPOINTS)
        measurements.add(metric.CHECKPOINT_SECONDS, time.perf_counter() - began)
        measurements.set(metric.CHECKPOINT_BYTES, part.size)
        return part

    def commit(
        self, step: int, parts: Sequence[CheckpointPart], position: dict[str, Any], *, keep: bool = False
    ) -> CheckpointManifest | None:
        """Complete the checkpoint, from which the next attempt resumes.

        Returns None and reports an event if the checkpoint is skipped because the blob store is unavailable.
        """
        manifest = CheckpointManifest(
            attempt=self._attempt, step=step, parts=tuple(parts), position=position, keep=keep
        )
        try:
            for part in parts:
                if isinstance(part, MissingPart):
                    raise BlobsUnavailable(f"part {part.name!r} was not stored: {part.reason}")
            self._records.record_checkpoint(manifest)
        except BlobsUnavailable as error:
            self._on_skip(f"the checkpoint at step {step} was skipped: {error}")
            return None
        return manifest

    def load_part(self, manifest: CheckpointManifest, name: str) -> dict[str, torch.Tensor]:
        """Load and check one part.

        Raises `CheckpointError` if the part is not in the manifest, `DamagedCheckpoint` if it is missing or changed.
        """
        part = next((part for part in manifest.parts if part.name == name), None)
        if part is None:
            there = ", ".join(part.name for part in manifest.parts)
            raise CheckpointError(f"the checkpoint at step {manifest.step} has no part {name!r}; it has: {there}")
        path = self._scratch / f"load-{name}.safetensors"
        try:
            self._blobs.get(part.blob, path)
        except NoSuchBlob as error:
            raise DamagedCheckpoint(
                f"part {name!r} of the checkpoint at step {manifest.step} is gone: {error}"
            ) from error
        if path.stat().st_size != part.size or sha256_of(path) != part.sha256:
            raise DamagedCheckpoint(f"part {name!r} of the checkpoint at step {manifest.step} is damaged")
        with safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118 - not a mapping
        path.unlink()
        return tensors


def separate_memory(tensors: Tensors) -> dict[str, torch.Tensor]:
    """The tensors, detached and contiguous, and tied weights as copies, because safetensors refuses to share memory.

    So they keep all their names, each of which `load_state_dict` needs.
    """
    separate: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        own = tensor.detach().contiguous()
        separate[name] = own.clone() if own.data_ptr() in seen else own
        seen.add(own.data_ptr())
    return separate


def flatten_optimizer(optimizer: torch.optim.Optimizer, prefix: str = "optimizer/") -> dict[str, torch.Tensor]:
    """An optimizer's state as named tensors: `<prefix><parameter index>/<key>`; integers keep their type."""
    state = optimizer.state_dict()["state"]
    return {
        f"{prefix}{index}/{key}": value if isinstance(value, torch.Tensor) else torch.tensor(value)
        for index, entries in state.items()
        for key, value in entries.items()
        if value is not None
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Tensors, prefix: str = "optimizer/") -> None:
    """Restore the state from `flatten_optimizer`. The parameters set the learning rates, not the checkpoint."""
    state: dict[int, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        if name.startswith(prefix):
            index, key = name.removeprefix(prefix).split("/", 1)
            # SparseAdam counts its steps in a Python integer, the dense optimizers in a float tensor.
            value = tensor.item() if tensor.dtype == torch.int64 and tensor.ndim == 0 else tensor
            state.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """The state of the random number generators that dropout draws from."""
    state = {"random/cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["random/cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random_state(tensors: Tensors, device: torch.device) -> None:
    torch.set_rng_state(tensors["random/cpu"])
    if device.type == "cuda" and "random/cuda" in tensors:
        torch.cuda.set_rng_state(tensors["random/cuda"], device)
