"""A gang of one process, which is its own parameter server, with real RPC and a real process group."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from tests.own_process import own_context, own_rpc

from rolecall.kit.params import TrainingParams
from rolecall.runtime.context import WorkerContext
from rolecall.spec.plan import CheckpointManifest
from rolecall.spec.role import Role

WorkerContextOfTest = WorkerContext[TrainingParams]


@pytest.fixture(scope="module")
def gang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """RPC and the default process group, with this process as the only worker."""
    folder = tmp_path_factory.mktemp("gang")
    with own_rpc(folder):
        dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/group", 1), rank=0, world_size=1)
        yield
        dist.destroy_process_group()


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerContextOfTest]:
    """The context of a trainer, which RPC calls find as the server's, too."""
    params = TrainingParams(epochs=1, checkpoint_every_s=None)
    with own_context(tmp_path, params, Role.TRAINER, monkeypatch) as made:
        yield made


def manifest_of(context: WorkerContext[Any], step: int, parts: Any) -> CheckpointManifest:
    """The manifest of a checkpoint that was committed with these parts."""
    found = context.checkpoints.commit(step, parts, {}, keep=False)
    assert found is not None
    return found
