"""Runs the workers of one attempt as processes with real sockets, without master and nodes.

Records the loss of every step, which the service's throttled progress does not. Workers are not sandboxed. They see
only the GPUs that the test gives them.
"""

import importlib
import json
import math
import multiprocessing
import multiprocessing.connection
import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType
from typing import Any

import torch

from rolecall.runtime import context as runtime_context
from rolecall.runtime.artifacts import Artifacts
from rolecall.runtime.blobs import SharedBlobs
from rolecall.runtime.checkpoint import Checkpoints
from rolecall.runtime.context import WorkerContext, own_device
from rolecall.runtime.rendezvous import join_before_role
from rolecall.runtime.reporter import Reporter
from rolecall.settings.child_environments import heap_variables
from rolecall.spec.plan import CheckpointManifest, GangPlan, WorkerLaunch, WorkerPlan
from rolecall.spec.role import RANK_ORDER, Role
from rolecall.spec.shared_memory import remove_files
from rolecall.spec.wire import ArtifactNotice
from rolecall.spec.workdir import Workdir
from rolecall.spec.workload import Workload
from rolecall.workloads import catalogue

# Pyarrow's allocator would have a thread in the fork server, which must have only one.
os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
os.environ.update(heap_variables(os.environ))
# A program has one fork server. Without these modules, each of its processes would import them in two seconds.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["rolecall.testing.preload"])


@dataclass(frozen=True)
class GangResult:
    """Losses, result and files of a gang."""

    folder: Path
    """Checkpoint manifests as `checkpoint-<step>.json`, and all files of the workers."""
    losses: dict[str, list[float]]
    """Every step's loss, by worker, such as `trainer-0`; NaN where the worker had no samples."""
    result: dict[str, float]
    """The job's final metrics."""
    step_ends: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """The end of each step in seconds of the monotonic clock, by worker."""
    samples: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """The samples of each step, by worker."""
    seconds: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    """The seconds of each worker's main thread by activity, see `WORKER_METRICS`; without those of its start."""
    peak_gpu_memory: dict[str, int] = field(default_factory=dict[str, int])
    """The most bytes that torch allocated on the GPU at a time, by worker; only workers with a GPU."""

    def artifact(self, name: str) -> Path:
        return self.folder / "blobs" / "job" / "1" / name


class FolderRecords:
    """Stands in for the master: writes one file for each checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def record_checkpoint(self, manifest: CheckpointManifest) -> None:
        (self._folder / f"checkpoint-{manifest.step:06d}.json").write_text(manifest.model_dump_json())

    def record_artifact(self, notice: ArtifactNotice) -> None:
        pass


class RecordingReporter(Reporter):
    """Also records the exact loss, the end and the samples of every step."""

    def __init__(self, path: Path, folder: Path, name: str) -> None:
        super().__init__(path)
        self._files = {kind: (folder / f"{kind}-{name}").open("a") for kind in ("losses", "step-ends", "samples")}

    def __call__(self, step: int, *, loss: float | torch.Tensor | None, samples: int = 0, **rest: Any) -> None:
        self._record("losses", json.dumps(math.nan if loss is None else float(loss)))
        self._record("step-ends", str(time.monotonic()))
        self._record("samples", str(samples))
        super().__call__(step, loss=loss, samples=samples, **rest)

    def _record(self, kind: str, number: str) -> None:
        self._files[kind].write(number + "\n")
        self._files[kind].flush()


def run_gang(
    workload: str | Workload[Any],
    params: dict[str, Any],
    roles: Mapping[Role, int],
    folder: Path,
    *,
    resume_from: CheckpointManifest | None = None,
    timeout_s: float = 240.0,
    environment: Mapping[str, str] = MappingProxyType({}),
    threads: Mapping[Role, int] = MappingProxyType({}),
    gpus: Mapping[Role, Sequence[str]] = MappingProxyType({}),
    on_start: Callable[[Mapping[str, int]], None] | None = None,
) -> GangResult:
    """Run one attempt of a job to its end on this machine.

    `workload` is a `Workload` or the name of an installed one; `roles` has the number of workers of each role. All
    files are in `folder`, where workers may read input; `environment` extends the workers' environment, for example
    with other `ROLECALL_DATA_ROOTS`. `resume_from` is a checkpoint of an earlier run whose `blobs` folder is in
    `folder`. `threads` has the number of threads of each worker of a role, 1 by default.

    Workers run on the CPU, except those of the roles in `gpus`: its values are the UUIDs of GPUs, as in
    `nvidia-smi -L`, which the workers of a role get in turn. So several workers may share one GPU.

    `on_start` is called once with the process id of each worker, by name, for example to measure its memory.

    Raises `AssertionError` with the traceback of the first worker that failed (expendable workers may fail),
    `TimeoutError`, and `FileExistsError` if a gang has already run in `folder`. No worker outlives the call.
    """
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "work").exists():
        raise FileExistsError(f"a gang has already run in {folder}; use a new folder for each gang")
    declared = catalogue.load(workload) if isinstance(workload, str) else workload
    gang = _plan(roles, threads, gpus)
    environment = {"ROLECALL_DATA_ROOTS": str(folder), **os.environ, **environment}
    launches = _launches(declared.name, params, gang, resume_from)
    workers = [
        processes.Process(target=_run_worker, args=(declared, launch, folder, environment), daemon=True)
        for launch in launches
    ]
    essential = [one for one, plan in zip(workers, gang.workers, strict=True) if plan.role not in declared.expendable]
    deadline = time.monotonic() + timeout_s

    def check() -> None:
        if any(worker.exitcode for worker in essential):
            failures = sorted(folder.glob("failure-*"), key=lambda path: path.stat().st_mtime)
            raise AssertionError(failures[0].read_text() if failures else "a worker died without a traceback")
        if time.monotonic() > deadline:
            raise TimeoutError("the gang did not end in time")

    for worker in workers:
        worker.start()
    try:
        if on_start is not None:
            on_start({name: worker.pid or 0 for name, worker in zip(_names(gang), workers, strict=True)})
        _publish_port(folder, gang, check)
        while any(worker.is_alive() for worker in workers):
            check()
            multiprocessing.connection.wait([worker.sentinel for worker in workers if worker.is_alive()], 0.2)
        check()
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
        for launch in launches:
            remove_files(launch)
    return _collect(folder, gang)


def _launches(
    workload: str, params: dict[str, Any], gang: GangPlan, resume_from: CheckpointManifest | None
) -> list[WorkerLaunch]:
    secret = token_hex()
    return [
        WorkerLaunch(
            job="job",
            attempt=1,
            workload=workload,
            params=params,
            worker=worker,
            gang=gang,
            master_addr="127.0.0.1",
            secret=secret,
            resume_from=resume_from,
        )
        for worker in gang.workers
    ]


def _plan(
    roles: Mapping[Role, int],
    threads: Mapping[Role, int] = MappingProxyType({}),
    gpus: Mapping[Role, Sequence[str]] = MappingProxyType({}),
) -> GangPlan:
    ordered = [(role, role_rank) for role in RANK_ORDER for role_rank in range(roles.get(role, 0))]
    workers: list[WorkerPlan] = []
    for rank, (role, role_rank) in enumerate(ordered):
        uuids = gpus.get(role, ())
        gpu = uuids[role_rank % len(uuids)] if uuids else None
        count = threads.get(role, 1)
        workers.append(WorkerPlan(rank=rank, role=role, role_rank=role_rank, node="here", threads=count, gpu=gpu))
    return GangPlan(workers=tuple(workers))


def _run_worker(workload: Workload[Any], launch: WorkerLaunch, folder: Path, environment: dict[str, str]) -> None:
    os.environ.update(environment | {"CUDA_VISIBLE_DEVICES": launch.worker.gpu or ""})
    torch.set_num_threads(launch.worker.threads)
    workdir = Workdir.of(folder, launch.job, launch.attempt, launch.worker.rank)
    workdir.scratch.mkdir(parents=True, exist_ok=True)
    try:
        params = workload.params.model_validate(launch.params)
        name = runtime_context.worker_name(launch.worker.role, launch.worker.role_rank)
        # Not `as_uri`, whose escapes (of a space, for example) fsspec takes literally.
        blobs, records = SharedBlobs(f"file://{folder / 'blobs'}", launch.job, launch.attempt), FolderRecords(folder)
        context = WorkerContext(
            launch=launch,
            params=params,
            device=own_device(launch.worker),
            workdir=workdir,
            cache=folder / "cache",
            report=RecordingReporter(workdir.progress, folder, name),
            checkpoints=Checkpoints(blobs, records, launch.attempt, launch.resume_from, workdir.scratch),
            artifacts=Artifacts(blobs, records, launch.attempt),
        )
        runtime_context.enter(context)
        if workload.check_node is not None:
            workload.check_node(params, launch.worker.role)
        role = importlib.import_module(workload.module_of(launch.worker.role))
        with join_before_role(launch, workload, workdir, context.report):
            role.run(context)
        (folder / f"seconds-{name}").write_text(json.dumps(context.timeline.seconds()))
        if context.device.type == "cuda":
            (folder / f"gpu-memory-{name}").write_text(str(torch.cuda.max_memory_allocated()))
    except BaseException:
        (folder / f"failure-{launch.worker.rank}").write_text(traceback.format_exc())
        raise


def _publish_port(folder: Path, gang: GangPlan, check: Callable[[], None]) -> None:
    """Write the rendezvous port of rank 0 to the other workers' folders, as master and nodes do in the service."""
    first = Workdir.of(folder, "job", 1, 0).progress
    port = None
    while port is None:
        check()
        time.sleep(0.005)
        text = first.read_text() if first.exists() else ""
        lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        port = next((line["port"] for line in lines if line["kind"] == "rendezvous"), None)
    for worker in gang.workers[1:]:
        target = Workdir.of(folder, "job", 1, worker.rank)
        target.path.mkdir(parents=True, exist_ok=True)
        partial = target.path / "rendezvous.partial"
        partial.write_text(str(port))
        partial.rename(target.rendezvous)


def _collect(folder: Path, gang: GangPlan) -> GangResult:
    names = _names(gang)
    result: dict[str, float] = {}
    for path in folder.glob("work/job/1/*/progress.jsonl"):
        for line in map(json.loads, path.read_text().splitlines()):
            if line["kind"] == "result":
                result = line["metrics"]
    return GangResult(
        folder=folder,
        losses=_read_lines(folder, "losses", names),
        result=result,
        step_ends=_read_lines(folder, "step-ends", names),
        samples=_read_lines(folder, "samples", names),
        seconds={name: found[0] for name, found in _read_lines(folder, "seconds", names).items()},
        peak_gpu_memory={name: int(found[0]) for name, found in _read_lines(folder, "gpu-memory", names).items()},
    )


def _names(gang: GangPlan) -> list[str]:
    return [runtime_context.worker_name(worker.role, worker.role_rank) for worker in gang.workers]


def _read_lines(folder: Path, kind: str, names: list[str]) -> dict[str, list[Any]]:
    """The values in the files of one kind, as JSON, one on each line, by worker; without workers that wrote none."""
    return {
        name: [json.loads(line) for line in path.read_text().splitlines()]
        for name in names
        if (path := folder / f"{kind}-{name}").exists() and path.stat().st_size
    }
