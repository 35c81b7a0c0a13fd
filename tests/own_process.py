# pyright: standard
"""This test process as a gang of one worker: real RPC with itself, and a worker's context."""

import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from torch.distributed import rpc

from rolecall.runtime import context as runtime_context
from rolecall.runtime.artifacts import Artifacts
from rolecall.runtime.blobs import SharedBlobs
from rolecall.runtime.checkpoint import Checkpoints
from rolecall.runtime.context import WorkerContext
from rolecall.runtime.reporter import Reporter
from rolecall.runtime.timeline import Timeline
from rolecall.spec.plan import CheckpointManifest, GangPlan, WorkerLaunch, WorkerPlan
from rolecall.spec.role import Role
from rolecall.spec.workdir import Workdir
from rolecall.spec.workload import Params
from rolecall.testing.gang import FolderRecords

AnyParams = TypeVar("AnyParams", bound=Params)
NAME = "parameter-server-0"
"""The name of this process in RPC. Torch keeps the first name of a process for good, so all tests have the same."""


@contextmanager
def own_rpc(folder: Path, *, graceful: bool = True) -> Generator[str]:
    """RPC with this process as the only worker; gives its name."""
    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=4, init_method=f"file://{folder}/rpc", _transports=["uv"], _channels=["basic"]
    )
    rpc.init_rpc(NAME, rank=0, world_size=1, rpc_backend_options=options)
    yield NAME
    rpc.shutdown(graceful=graceful)


@contextmanager
def worker_context(
    folder: Path,
    params: AnyParams,
    role: Role,
    *,
    role_rank: int = 0,
    resume_from: CheckpointManifest | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Generator[WorkerContext[AnyParams]]:
    """The context of the only worker of a gang, for a loop that is called directly; its timeline has the clock."""
    plan = WorkerPlan(rank=0, role=role, role_rank=role_rank, node="here", threads=1)
    gang = GangPlan(workers=(plan,))
    launch = WorkerLaunch(job="job", attempt=1, workload="w", params={}, worker=plan, gang=gang, master_addr="")
    workdir = Workdir.of(folder, "job", 1, 0)
    workdir.scratch.mkdir(parents=True, exist_ok=True)
    blobs, records = SharedBlobs((folder / "blobs").as_uri(), "job", 1), FolderRecords(folder)
    with closing(Reporter(workdir.progress)) as report:
        yield WorkerContext(
            launch=launch,
            params=params,
            device=torch.device("cpu"),
            workdir=workdir,
            cache=folder,
            report=report,
            checkpoints=Checkpoints(blobs, records, 1, resume_from, workdir.scratch),
            artifacts=Artifacts(blobs, records, 1),
            timeline=Timeline(clock),
        )


@contextmanager
def own_context(
    folder: Path, params: Params, role: Role, monkeypatch: pytest.MonkeyPatch
) -> Generator[WorkerContext[Any]]:
    """The context of the only worker of a gang, which RPC calls find in this process."""
    with worker_context(folder, params, role) as made:
        monkeypatch.setattr(runtime_context, "_current", made)
        yield made


def manifest(folder: Path, step: int) -> CheckpointManifest:
    """The checkpoint that a worker with a context of this folder recorded at `step`."""
    return CheckpointManifest.model_validate_json((folder / f"checkpoint-{step:06d}.json").read_text())
