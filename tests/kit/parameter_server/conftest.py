"""A gang of one process, which is its own parameter server, with real RPC and a real process group."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import rpc

from rolecall.kit.params import TrainingParams
from rolecall.runtime import context as runtime_context
from rolecall.runtime.artifacts import Artifacts
from rolecall.runtime.blobs import SharedBlobs
from rolecall.runtime.checkpoint import Checkpoints
from rolecall.runtime.context import WorkerContext
from rolecall.runtime.reporter import Reporter
from rolecall.spec.plan import CheckpointManifest, GangPlan, WorkerLaunch, WorkerPlan
from rolecall.spec.role import Role
from rolecall.spec.workdir import Workdir
from rolecall.testing.gang import FolderRecords

WorkerContextOfTest = WorkerContext[TrainingParams]


@pytest.fixture(scope="module")
def gang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """RPC and the default process group, with this process as the only worker."""
    folder = tmp_path_factory.mktemp("gang")
    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=4, init_method=f"file://{folder}/rpc", _transports=["uv"], _channels=["basic"]
    )
    rpc.init_rpc("parameter-server-0", rank=0, world_size=1, rpc_backend_options=options)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/group", 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    rpc.shutdown()


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerContextOfTest]:
    """The context of a trainer, which RPC calls find as the server's, too."""
    plan = WorkerPlan(rank=0, role=Role.TRAINER, role_rank=0, node="here", threads=1)
    gang = GangPlan(workers=(plan,))
    launch = WorkerLaunch(job="job", attempt=1, workload="w", params={}, worker=plan, gang=gang, master_addr="")
    workdir = Workdir.of(tmp_path, "job", 1, 0)
    workdir.scratch.mkdir(parents=True)
    blobs, records = SharedBlobs((tmp_path / "blobs").as_uri(), "job", 1), FolderRecords(tmp_path)
    with closing(Reporter(workdir.progress)) as report:
        made = WorkerContext(
            launch=launch,
            params=TrainingParams(epochs=1, checkpoint_every_s=None),
            device=torch.device("cpu"),
            workdir=workdir,
            cache=tmp_path,
            report=report,
            checkpoints=Checkpoints(blobs, records, 1, None, workdir.scratch),
            artifacts=Artifacts(blobs, records, 1),
        )
        monkeypatch.setattr(runtime_context, "_current", made)
        yield made


def manifest_of(context: WorkerContext[Any], step: int, parts: Any) -> CheckpointManifest:
    """The manifest of a checkpoint that was committed with these parts."""
    found = context.checkpoints.commit(step, parts, {}, keep=False)
    assert found is not None
    return found
